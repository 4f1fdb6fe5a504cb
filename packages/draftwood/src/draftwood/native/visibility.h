// What the rows of a forward pass see, and how the work on it is divided.
//
// A row sees its text: the committed tokens, its ancestors among the new rows, and itself; of these
// the last few where a window hides the others. Where rows come with positions, a text is what the
// row is told to see, later rows too, in the order of positions; a window hides the positions that
// far before the row's own. Texts are read in blocks of 256 tokens counted from the beginning, so
// that what is added up for a row, and in which order, depends on nothing but its text. A block in
// which several sequences begin alike is read once for all of them, where they come one behind the
// other.
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
    int64_t is_text;  // whether the new tokens are the text's own, each behind all before it

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
    bool has(int64_t place) const { return first <= place && place < last; }
};

class Visibility {
public:
    static constexpr int64_t NO_WINDOW = 0;

    static constexpr int ALL_BLOCKS = -1;

    // Groups [first, last) over one block, or one group over all of its own.
    struct Item {
        int first, last, block;
    };

    // The work of layers with one window. What groups find in single blocks is kept row by row
    // until all of a group's blocks are done.
    struct Plan {
        int64_t window;
        std::vector<Item> items;       // those of one group stand in order
        std::vector<Stretch> blocks;   // by group, with something that one of its rows sees
        std::vector<int64_t> firsts;   // by group: where its blocks begin in `kept`
        std::vector<int64_t> kept;     // by group and block: its first row among all that are kept
        int64_t rows = 0;              // that are kept

        int64_t kept_at(int group, int64_t block) const {
            return kept[firsts[group] + block - blocks[group].first];
        }
    };

    std::vector<RowGroup> groups;
    std::vector<Plan> plans;
    int pieces = 1;    // into which heads that share keys are divided, where there is little to do
    int per_item = 1;  // heads that share keys, times pieces

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
        const bool is_split = (int)groups.size() * per_item < WORK_PER_THREAD * threads;
        for (int64_t window : windows)
            add_plan(window, is_split, std::max(1, MOST_TOGETHER / heads_per_key));
        const size_t units = groups.size() * per_item;
        if (units > counted) counters.reset(new std::atomic<int>[units] {}), counted = units;
    }

    const Plan& plan(int64_t window) const {
        return *std::find_if(plans.begin(), plans.end(),
                             [&](const Plan& plan) { return plan.window == window; });
    }

    // Shares of the work of a layer, each for heads of one group that share keys.
    int things(int64_t window) const { return (int)plan(window).items.size() * per_item; }

    int64_t most_kept() const {
        int64_t most = 0;
        for (const Plan& plan : plans) most = std::max(most, plan.rows);
        return most;
    }

    // Groups [first, last) as one, over a block that they share.
    RowGroup together(const Item& item) const {
        RowGroup all = groups[item.first];
        for (int group = item.first + 1; group < item.last; group++) {
            all.count += groups[group].count;
            all.shared = std::min(all.shared, groups[group].shared);
        }
        return all;
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

    static constexpr int64_t ENDS_WITH_ROW = -1, NOT_KEPT = -1;

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
            return std::max<int64_t>(1, sum);
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

    void add_plan(int64_t window, bool is_split, int64_t most) {
        Plan plan{window, {}, {}, {}, {}};
        for (const RowGroup& group : groups) {
            plan.blocks.push_back(blocks(group, window));
            plan.firsts.push_back((int64_t)plan.kept.size());
            plan.kept.resize(plan.kept.size() + plan.blocks.back().last - plan.blocks.back().first,
                             NOT_KEPT);
        }
        share_blocks(plan, most);
        std::vector<bool> splits;  // by group
        for (int group = 0; group < (int)groups.size(); group++) {
            const Stretch& own = plan.blocks[group];
            splits.push_back((is_split && own.last - own.first > 1) || has_kept(plan, group));
            if (!splits[group]) plan.items.push_back({group, group + 1, ALL_BLOCKS});
        }
        for (int first = 0, last; first < (int)groups.size(); first = last) {
            Stretch all{INT64_MAX, 0};  // groups of one sequence read a block one after the other
            for (last = first; last < (int)groups.size() && groups[last].slot == groups[first].slot;
                 last++)
                all = {std::min(all.first, plan.blocks[last].first),
                       std::max(all.last, plan.blocks[last].last)};
            for (int64_t block = all.first; block < all.last; block++)
                for (int group = first; group < last; group++)
                    if (splits[group] && plan.blocks[group].has(block) &&
                        plan.kept_at(group, block) == NOT_KEPT)
                        keep(plan, {group, group + 1, (int)block});
        }
        plans.push_back(std::move(plan));
    }

    static bool has_kept(const Plan& plan, int group) {
        const Stretch& own = plan.blocks[group];
        for (int64_t block = own.first; block < own.last; block++)
            if (plan.kept_at(group, block) != NOT_KEPT) return true;
        return false;
    }

    void keep(Plan& plan, const Item& item) const {
        plan.items.push_back(item);
        for (int group = item.first; group < item.last; group++) {
            plan.kept[plan.firsts[group] + item.block - plan.blocks[group].first] = plan.rows;
            plan.rows += groups[group].count;
        }
    }

    // Items of blocks in which neighbours begin alike, of at most so many rows.
    void share_blocks(Plan& plan, int64_t most) const {
        int64_t blocks = 0;
        for (const Stretch& own : plan.blocks) blocks = std::max(blocks, own.last);
        for (int64_t block = 0; groups.size() > 1 && block < blocks; block++)
            for (int first = 0, last; first < (int)groups.size(); first = last) {
                int64_t rows = groups[first].count;
                for (last = first + 1; last < (int)groups.size(); last++) {
                    rows += groups[last].count;
                    if (rows > most || !are_alike(plan, last - 1, last, block)) break;
                }
                if (last > first + 1) keep(plan, {first, last, (int)block});
            }
    }

    // Whether all rows of two groups, each the only one of its sequence, read a block at the same
    // places.
    bool are_alike(const Plan& plan, int a, int b, int64_t block) const {
        for (const int group : {a, b}) {
            if (!is_alone(group) || groups[group].shared < (block + 1) * BLOCK ||
                !plan.blocks[group].has(block))
                return false;
        }
        constexpr int TABLES = BLOCK / CACHE_BLOCK;
        return !std::memcmp(groups[a].blocks + block * TABLES, groups[b].blocks + block * TABLES,
                            TABLES * sizeof(*groups[a].blocks));
    }

    bool is_alone(int group) const {
        return (!group || groups[group - 1].slot != groups[group].slot) &&
               (group + 1 == (int)groups.size() || groups[group + 1].slot != groups[group].slot);
    }
};

}  // namespace draftwood
