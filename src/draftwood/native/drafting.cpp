// What drafting.py calls.
#include "drafting.h"

using namespace draftwood;

extern "C" {

NGramTables* draftwood_tables_new(int32_t order, double fresh, int64_t most) {
    return new NGramTables(order, fresh, most);
}

void draftwood_tables_free(NGramTables* tables) { delete tables; }

Drafting* draftwood_drafting_new(const DraftingSettings* settings, NGramTables* tables) {
    return new Drafting(*settings, tables);
}

void draftwood_drafting_free(Drafting* drafting) { delete drafting; }

// The nodes of a tree in falling order of their chances, no path longer than `room`; returns how
// many there are. `costs` of a step with 0, 1, 2, ... guesses, `slopes` the least that a further
// one costs, infinite where the arrays of nodes end.
int32_t draftwood_drafting_grow(Drafting* drafting, int32_t root, const double* costs,
                                const double* slopes, int32_t noisy, uint64_t key, uint64_t place,
                                int64_t room, int64_t* tokens, int64_t* parents, double* chances) {
    drafting->grow(root, costs, slopes, noisy, key, place, room);
    int32_t count = 0;
    for (const Node& node : drafting->nodes) {
        tokens[count] = node.token, parents[count] = node.parent, chances[count] = node.chance;
        count++;
    }
    return count;
}

// Which sources proposed nodes 1 to `count` - 1 of the last tree, as bits.
void draftwood_drafting_proposers(const Drafting* drafting, int32_t count, int32_t* bits) {
    count = std::min<int32_t>(count, drafting->nodes.size());
    for (int32_t node = 1; node < count; node++)
        bits[node] = drafting->proposers(drafting->nodes[node]);
}

// `successors` and `probs` [count ranks] may be null: then only the path is taken in.
void draftwood_drafting_learn(Drafting* drafting, const int64_t* tokens, const int64_t* parents,
                              int64_t count, const int64_t* path, int64_t length,
                              const int64_t* successors, const float* probs, int64_t ranks) {
    drafting->learn(tokens, parents, count, path, length, successors, probs, ranks);
}
}
