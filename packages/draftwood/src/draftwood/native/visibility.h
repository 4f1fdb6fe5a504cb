// What the rows of a forward pass see, and how the work on it is divided.
//
// A row sees its text: the committed tokens, its ancestors among the new rows, and itself; of these
// the last few where a window hides the others. Where rows come with positions, a text is what the
// row is told to see, later rows too, in the order of positions; a window hides the positions that
// far before the row's own. Texts are read in blocks of 256 tokens counted from the beginning, so
// that what is added up for a row, and in which order, depends on nothing but its text.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "cache.h"

namespace draftwood {

constexpr int BLOCK = 256;

// One sequence's rows: `count` new tokens of a slot, from place `start` on. Of the places before
// them, `before` hold committed tokens, and the others nodes of their own tree. Logits are wanted
// of the last `wanted` rows.
struct Sequence {
    int64_t slot, start, count, before, wanted;
    Blocks blocks;
    // [start + count - before], of the nodes, none below `before`; null where a row is the end of
    // its text
    const int64_t* positions;

    int64_t nodes() const { return start + count - before; }
};

// Rows of one sequence that are attended to together.
struct RowGroup {
    int64_t slot;
    Blocks blocks;
    int first, count;
    int64_t shared;   // tokens with which all their texts begin; they lie at places 0, 1, ...
    int64_t longest;  // of their texts
};

// Tokens [first, last) of a text.
struct Stretch {
    int64_t first, last;

    bool empty() const { return first >= last; }
};

class Visibility {
public:
    static constexpr int64_t NO_WINDOW = 0;

    struct Item {
        int group, block;
    };

    // The work of layers with one window.
    struct Plan {
        int64_t window;
        std::vector<Item> items;  // blocks of one group stand in order
        std::vector<int> slots;   // by group: its blocks before it, of all groups
        int blocks = 0;
    };

    std::vector<RowGroup> groups;
    std::vector<Plan> plans;
    int pieces = 1;    // into which heads that share keys are divided, where there is little to do
    int per_item = 1;  // heads that share keys, times pieces
    bool is_split = false;  // whether a group's blocks are given to several threads

    // Divides the rows of a pass. `sees` [sequences] is as read() takes it.
    void build(const Sequence* sequences, int count, const uint8_t* const* sees,
               const std::vector<int64_t>& windows, int num_kv_heads, int heads_per_key,
               int threads) {
        groups.clear(), texts.clear(), places.clear(), plans.clear(), hidden.clear();
        known_windows = windows;
        divide(sequences, count, num_kv_heads, heads_per_key, threads);
        size_t group = 0;
        for (int i = 0, row = 0; i < count; row += (int)sequences[i++].count) {
            if (sequences[i].positions) sort(sequences[i]);
            for (; group < groups.size() && groups[group].first < row + sequences[i].count; group++)
                sequences[i].positions ? read_told(sequences[i], row, sees[i], groups[group])
                                       : read(sequences[i], row, sees[i], groups[group]);
        }
        per_item = num_kv_heads * pieces;
        is_split = (int)groups.size() * per_item < WORK_PER_THREAD * threads;
        for (int64_t window : windows) add_plan(window);
        const size_t units = groups.size() * per_item;
        if (units > counted) counters.reset(new std::atomic<int>[counted = units] {});
    }

    const Plan& plan(int64_t window) const {
        return *std::find_if(plans.begin(), plans.end(),
                             [&](const Plan& plan) { return plan.window == window; });
    }

    // Shares of the work of a layer, each for heads of one group that share keys.
    int things(int64_t window) const { return (int)plan(window).items.size() * per_item; }

    int most_rows() const {
        int most = 0;
        for (const RowGroup& group : groups) most = std::max(most, group.count);
        return most;
    }

    int most_blocks() const {
        int most = 0;
        for (const Plan& plan : plans) most = std::max(most, plan.blocks);
        return most;
    }

    // What a row sees.
    Stretch seen(int row, int64_t window) const {
        const int64_t length = texts[row].length;
        if (window == NO_WINDOW) return {0, length};
        const int64_t own = texts[row].hidden;
        if (own == ENDS_WITH_ROW) return {std::max<int64_t>(0, length - window), length};
        const auto found = std::find(known_windows.begin(), known_windows.end(), window);
        return {hidden[own + (found - known_windows.begin())], length};
    }

    // The blocks with something that one of a group's rows sees.
    Stretch blocks(const RowGroup& group, int64_t window) const {
        int64_t first = group.longest;
        for (int row = group.first; row < group.first + group.count; row++)
            first = std::min(first, seen(row, window).first);
        return {first / BLOCK, (group.longest - 1) / BLOCK + 1};
    }

    // Where a text's tokens behind the shared ones lie.
    const int32_t* own_places(int row) const { return places.data() + texts[row].places; }

    // Whether this was the last of so many threads to be done with a group's share.
    bool is_last(size_t unit, int64_t of) {
        if (counters[unit].fetch_add(1, std::memory_order_acq_rel) + 1 != of) return false;
        counters[unit].store(0, std::memory_order_relaxed);
        return true;
    }

private:
    static constexpr int MOST_TOGETHER = 64;   // rows times heads, whose scores stay cached
    static constexpr int WORK_PER_THREAD = 3;  // so that threads end together

    static constexpr int64_t ENDS_WITH_ROW = -1;

    struct Text {
        int64_t length;
        size_t places;
        int64_t hidden;  // where the tokens that windows hide are counted, or ENDS_WITH_ROW
    };

    std::vector<Text> texts;  // by row
    std::vector<int32_t> places;
    std::vector<int64_t> known_windows, hidden, order;  // order: a sequence's nodes by position
    std::unique_ptr<std::atomic<int>[]> counters;
    size_t counted = 0;

    // Large groups read keys and values least often, but there must be work for all threads. Heads
    // that share keys part last, as each part turns the keys for itself.
    void divide(const Sequence* sequences, int count, int num_kv_heads, int heads_per_key,
                int threads) {
        const int64_t most = std::max(1, MOST_TOGETHER / heads_per_key),
                      wanted = threads == 1 ? 1 : WORK_PER_THREAD * threads;
        const auto groups_of = [&](const Sequence& sequence, int64_t times) {
            return std::min(sequence.count, times * ((sequence.count + most - 1) / most));
        };
        const auto work = [&](int64_t times) {
            int64_t sum = 0;
            for (int i = 0; i < count; i++)
                sum += groups_of(sequences[i], times) * num_kv_heads *
                       ((sequences[i].start + sequences[i].count - 1) / BLOCK + 1);
            return sum;
        };
        const int64_t times = (wanted - 1) / work(1) + 1;
        pieces = (int)std::min<int64_t>(heads_per_key, (threads - 1) / work(times) + 1);
        for (int i = 0, row = 0; i < count; row += (int)sequences[i++].count) {
            const int64_t parts = groups_of(sequences[i], times), rows = sequences[i].count;
            for (int64_t part = 0; part < parts; part++) {
                const int64_t first = rows * part / parts, last = rows * (part + 1) / parts;
                groups.push_back({sequences[i].slot, sequences[i].blocks, row + (int)first,
                                  (int)(last - first), 0, 0});
            }
        }
    }

    // The texts of a group's rows; `sees` [count][nodes] says which nodes of the sequence's tree a
    // row sees. A node stands behind its ancestors.
    void read(const Sequence& sequence, int first_row, const uint8_t* sees, RowGroup& group) {
        const int64_t nodes = sequence.nodes(), ran = sequence.start - sequence.before;
        const auto row_of = [&](int row) { return sees + (row - first_row) * nodes; };
        int64_t alike = nodes;
        for (int row = group.first; row < group.first + group.count; row++) {
            const void* end = std::memchr(row_of(row), 0, alike);
            if (end) alike = (const uint8_t*)end - row_of(row);
        }
        group.shared = sequence.before + alike;
        for (int row = group.first; row < group.first + group.count; row++) {
            texts.push_back({0, places.size(), ENDS_WITH_ROW});
            for (int64_t node = alike; node <= ran + row - first_row; node++)
                if (row_of(row)[node]) places.push_back((int32_t)(sequence.before + node));
            texts.back().length = group.shared + (int64_t)(places.size() - texts.back().places);
            group.longest = std::max(group.longest, texts.back().length);
        }
    }

    void sort(const Sequence& sequence) {
        order.resize(sequence.nodes());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
            return sequence.positions[a] < sequence.positions[b];
        });
    }

    // The same for rows with positions, which may see any nodes. Their texts are in the order of
    // positions, so that what a window hides stands at the beginning.
    void read_told(const Sequence& sequence, int first_row, const uint8_t* sees, RowGroup& group) {
        const int64_t nodes = sequence.nodes(), ran = sequence.start - sequence.before;
        const auto row_of = [&](int row) { return sees + (row - first_row) * nodes; };
        const auto all_see = [&](int64_t node) {
            for (int row = group.first; row < group.first + group.count; row++)
                if (!row_of(row)[node]) return false;
            return true;
        };
        int64_t alike = 0;
        while (alike < nodes && order[alike] == alike && all_see(alike)) alike++;
        group.shared = sequence.before + alike;
        for (int row = group.first; row < group.first + group.count; row++) {
            texts.push_back({0, places.size(), (int64_t)hidden.size()});
            for (int64_t i = alike; i < nodes; i++)
                if (row_of(row)[order[i]])
                    places.push_back((int32_t)(sequence.before + order[i]));
            texts.back().length = group.shared + (int64_t)(places.size() - texts.back().places);
            group.longest = std::max(group.longest, texts.back().length);
            for (const int64_t window : known_windows)
                hidden.push_back(
                    count_hidden(sequence, row_of(row), ran + row - first_row, window));
        }
    }

    // Tokens of the text of node `own` that are `window` or more positions before it.
    static int64_t count_hidden(const Sequence& sequence, const uint8_t* sees, int64_t own,
                                int64_t window) {
        if (window == NO_WINDOW) return 0;
        const int64_t last = sequence.positions[own] - window;
        int64_t count = std::max<int64_t>(0, std::min(last + 1, sequence.before));
        for (int64_t node = 0; node < sequence.nodes(); node++)
            count += sees[node] && sequence.positions[node] <= last;
        return count;
    }

    void add_plan(int64_t window) {
        Plan plan{window, {}, {}};
        for (size_t i = 0; i < groups.size();) {
            size_t end = i;  // groups of one sequence read a block one after the other
            Stretch all{INT64_MAX, 0};
            for (; end < groups.size() && groups[end].slot == groups[i].slot; end++) {
                const Stretch own = blocks(groups[end], window);
                plan.slots.push_back(plan.blocks);
                plan.blocks += (int)(own.last - own.first);
                all = {std::min(all.first, own.first), std::max(all.last, own.last)};
                if (!is_split) plan.items.push_back({(int)end, 0});
            }
            for (int64_t block = all.first; is_split && block < all.last; block++)
                for (size_t group = i; group < end; group++) {
                    const Stretch own = blocks(groups[group], window);
                    if (own.first <= block && block < own.last)
                        plan.items.push_back({(int)group, (int)block});
                }
            i = end;
        }
        plans.push_back(std::move(plan));
    }
};

}  // namespace draftwood
