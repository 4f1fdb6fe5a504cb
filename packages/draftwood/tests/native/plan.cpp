// How the rows of a pass read the blocks of their texts, for tests.
//
// Reads numbers: threads, heads that share keys, how many keys, a window; then sequences, each a
// slot, its first new place, how many new tokens, and a table of blocks behind its length. Writes
// the rows of each group, and each item of the plan: its first and last group and its block.
#include <cstdio>
#include <iostream>

#include "visibility.h"

using namespace draftwood;

int main() {
    int threads, heads, keys, count;
    int64_t window;
    std::cin >> threads >> heads >> keys >> window >> count;
    std::vector<Sequence> sequences(count);
    std::vector<std::vector<uint8_t*>> tables(count);
    std::vector<std::vector<uint8_t>> trees(count);
    std::vector<const uint8_t*> sees;
    for (int i = 0; i < count; i++) {
        Sequence& own = sequences[i];
        size_t blocks;
        std::cin >> own.slot >> own.start >> own.count >> blocks;
        for (size_t j = 0, block; j < blocks && std::cin >> block; j++)
            tables[i].push_back((uint8_t*)block);
        own.before = own.start, own.wanted = 0, own.blocks = tables[i].data();
        own.positions = nullptr;
        for (int64_t row = 0; row < own.count; row++)  // a chain
            for (int64_t node = 0; node < own.count; node++) trees[i].push_back(node <= row);
        sees.push_back(trees[i].data());
    }
    Visibility visibility;
    visibility.build(sequences.data(), count, sees.data(), {window}, keys, heads, threads);
    for (const RowGroup& group : visibility.groups)
        std::printf("group %lld %d %d\n", (long long)group.slot, group.first, group.count);
    for (const Visibility::Item& item : visibility.plan(window).items)
        std::printf("item %d %d %d\n", item.first, item.last, item.block);
    std::printf("kept %lld\n", (long long)visibility.most_kept());
}
