// Rows encoded one by one and eight at once, for tests.
//
// Reads a number that row 0 has in one of its inputs, for the second way alone; then rows of two
// groups each. Writes how many words, bytes for the unit of amx.h and numbers beside them differ,
// by the number of rows.
#include <cstdio>
#include <iostream>

#include "matrices.h"

using namespace draftwood;

constexpr int INPUTS = 2 * GROUP;

bool differ(float a, float b) { return std::memcmp(&a, &b, sizeof a) && (a == a || b == b); }

int differences(const Rows& a, const Rows& b, int rows) {
    int count = 0;
    for (int group = 0; group < INPUTS / GROUP; group++) {
        const GroupFacts &one = a.facts_of(0)[group], &other = b.facts_of(0)[group];
        for (int row = 0; row < rows; row++) {
            for (int word = group * WORDS; word < (group + 1) * WORDS; word++)
                count += a.words_of(BYTES, 0)[word * MOST_ROWS + row] !=
                         b.words_of(BYTES, 0)[word * MOST_ROWS + row];
            count += differ(one.scales[row], other.scales[row]);
            for (int part = 0; part < 3; part++)
                count += differ(one.sums[part][row], other.sums[part][row]) +
                         (one.corrections[part][row] != other.corrections[part][row]);
            if (a.for_unit)
                for (int i = 0; i < GROUP; i++) {
                    const int at = group * GROUP * UNIT_ROWS + row * GROUP + i;
                    count += a.bytes_for_unit(0)[at] != b.bytes_for_unit(0)[at];
                }
        }
    }
    return count;
}

int main() {
    float changed;
    std::cin >> changed;
    std::vector<float> values;
    for (std::string word; std::cin >> word;) values.push_back(std::strtof(word.c_str(), nullptr));
    const int all = (int)values.size() / INPUTS;
    for (int count = 1; count <= std::min(all, MOST_ROWS); count++) {
        Rows one, other;
        one.reserve(BYTES, MOST_ROWS, INPUTS), other.reserve(BYTES, MOST_ROWS, INPUTS);
        std::vector<float> given = values;
        for (int row = 0; row < count; row++)
            for (int from = 0; from < INPUTS; from += GROUP)
                one.encode(row, from, &given[row * INPUTS + from], GROUP);
        given[3] += changed;
        for (int from = 0; from < INPUTS; from += GROUP) {
            const float* places[MOST_ROWS];
            for (int row = 0; row < count; row++) places[row] = &given[row * INPUTS + from];
            other.encode_block(0, count, from, places, GROUP);
        }
        std::printf("%d ", differences(one, other, count));
    }
}
