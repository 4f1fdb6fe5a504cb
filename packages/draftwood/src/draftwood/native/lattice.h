// Trees of what frames say, equal neighbours merged and blanks dropped (heads/lattice.py, which has
// the recursions).
#pragma once

#include <algorithm>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "rows.h"

namespace draftwood {

// Probabilities [frames][symbols] of each symbol in each frame; a blank is the last symbol.
struct Lattice {
    const float* probs;
    int32_t frames, symbols;
    int32_t has_blank;
    int32_t merges;  // else frame d says the token at depth d, and a blank ends the text

    int64_t tokens() const { return symbols - (has_blank ? 1 : 0); }
    float at(int frame, int64_t symbol) const { return probs[(int64_t)frame * symbols + symbol]; }
};

// A tree in numbers of the lattice's tokens; the root is node 0.
struct LatticeTree {
    int32_t most, depth;        // drafted nodes; of them in a row
    int64_t *tokens, *parents;  // [1 + most]
    int32_t nodes;              // found, without the root

    int add(int64_t token, int64_t parent) {
        tokens[++nodes] = token, parents[nodes] = parent;
        return nodes;
    }
};

// A text's beginning: of each frame its weight in what follows, and in one more like the last.
struct LatticePrefix {
    int64_t token;
    double chance;
    std::vector<double> weights, repeats;
};

inline LatticePrefix first_prefix(const Lattice& lattice) {
    LatticePrefix prefix{-1, 1, {}, {}};
    double silent = 1;
    for (int frame = 0; frame < lattice.frames; frame++) {
        prefix.weights.push_back(silent);
        silent *= lattice.merges ? (double)lattice.at(frame, lattice.symbols - 1) : 0;
    }
    prefix.repeats = prefix.weights;
    return prefix;
}

inline LatticePrefix extended(const Lattice& lattice, const LatticePrefix& prefix, int64_t token) {
    LatticePrefix longer{token, 0, {}, {}};
    const std::vector<double>& begins = token == prefix.token ? prefix.repeats : prefix.weights;
    double said = 0, silent = 0;
    for (int frame = 0; frame < lattice.frames; frame++) {
        const double say = lattice.at(frame, token),
                     blank = lattice.merges ? lattice.at(frame, lattice.symbols - 1) : 0;
        longer.weights.push_back(said + silent), longer.repeats.push_back(silent);
        longer.chance += say * begins[frame];
        const double before = said;
        said = say * ((lattice.merges ? said : 0) + begins[frame]);
        silent = blank * (before + silent);
    }
    if (!lattice.merges) longer.repeats = longer.weights;
    return longer;
}

// The probability of a prefix extended by each token.
inline void extend_by_all(const Lattice& lattice, const LatticePrefix& prefix, float* row) {
    const int64_t size = lattice.tokens();
    const auto sum_at = [&](int64_t place, const std::vector<double>& weights) {
        float sum = 0;
        for (int frame = 0; frame < lattice.frames; frame++)
            sum += (float)weights[frame] * lattice.at(frame, place);
        return sum;
    };
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        Floats sums{};
        for (int frame = 0; frame < lattice.frames; frame++)
            sums += (float)prefix.weights[frame] *
                    load(lattice.probs + (int64_t)frame * lattice.symbols + i);
        store(row + i, sums);
    }
    for (; i < size; i++) row[i] = sum_at(i, prefix.weights);
    if (prefix.token >= 0) row[prefix.token] = sum_at(prefix.token, prefix.repeats);
}

// The likeliest prefixes. None is likelier than its own prefixes, so the tree grows by the
// likeliest continuation; of equal ones by that of the earlier node.
inline void likeliest_prefixes(const Lattice& lattice, LatticeTree& tree) {
    struct Open {
        float chance;
        int64_t node, token;

        bool operator<(const Open& other) const {
            if (chance != other.chance) return chance < other.chance;
            return node != other.node ? node > other.node : token > other.token;
        }
    };
    std::priority_queue<Open> open;
    std::vector<LatticePrefix> prefixes{first_prefix(lattice)};
    std::vector<int32_t> depths{0};
    std::vector<float> row(lattice.tokens());
    std::vector<int64_t> best(tree.most);
    for (int64_t node = tree.nodes = 0; tree.nodes < tree.most; node = tree.nodes) {
        if (depths[node] < tree.depth) {
            extend_by_all(lattice, prefixes[node], row.data());
            const int count = (int)std::min<int64_t>(tree.most - tree.nodes, lattice.tokens());
            topk_of(row.data(), lattice.tokens(), count, best.data());
            for (int i = 0; i < count && row[best[i]] > 0; i++)
                open.push({row[best[i]], node, best[i]});
        }
        if (open.empty()) return;
        const Open next = open.top();
        open.pop();
        tree.add(next.token, next.node);
        depths.push_back(depths[next.node] + 1);
        prefixes.push_back(extended(lattice, prefixes[next.node], next.token));
    }
}

// A tree of texts that raw paths say: a path takes a symbol of each frame from the first on, equal
// neighbours are merged and blanks dropped (the transform of Wen et al. 2024, arXiv:2412.00061).
// Paths of one text share its nodes.
class CollapsedTree {
public:
    CollapsedTree(const Lattice& lattice, LatticeTree& tree)
        : tree(tree), blank(lattice.symbols - 1) {
        tree.nodes = 0;
    }

    // A path: the node of its text, and its last symbol.
    struct Path {
        int64_t node, symbol;
    };

    // One symbol longer; its node is -1 where the tree has no room for it.
    Path longer(const Path& path, int64_t symbol) {
        const bool is_said = symbol != blank && symbol != path.symbol;
        if (!is_said || depths[path.node] == tree.depth) return {path.node, symbol};
        const auto found = known.find({path.node, symbol});
        if (found != known.end()) return {found->second, symbol};
        if (tree.nodes == tree.most) return {-1, symbol};
        depths.push_back(depths[path.node] + 1);
        const int64_t node = tree.add(symbol, path.node);
        known[{path.node, symbol}] = node;
        return {node, symbol};
    }

private:
    LatticeTree& tree;
    const int64_t blank;
    std::vector<int32_t> depths{0};
    std::map<std::pair<int64_t, int64_t>, int64_t> known;
};

// The `ranks` likeliest symbols of each frame, [frames][ranks].
inline std::vector<int64_t> likeliest_symbols(const Lattice& lattice, int ranks) {
    std::vector<int64_t> best((size_t)lattice.frames * ranks);
    for (int frame = 0; frame < lattice.frames; frame++)
        topk_of(lattice.probs + (int64_t)frame * lattice.symbols, lattice.symbols, ranks,
                &best[(size_t)frame * ranks]);
    return best;
}

// The likeliest raw paths through the `ranks` likeliest symbols of each frame, each collapsed, until
// the tree is full or so many paths were looked at. Of equal paths the earlier found goes first.
inline void collapsed_alignments(const Lattice& lattice, int ranks, int64_t alignments,
                                 LatticeTree& tree) {
    ranks = std::min(ranks, lattice.symbols);
    const std::vector<int64_t> best = likeliest_symbols(lattice, ranks);
    struct Open {
        double chance, before;
        int64_t number;
        CollapsedTree::Path path;  // without the symbol of this rank
        int frame, rank;

        bool operator<(const Open& other) const {
            return chance != other.chance ? chance < other.chance : number > other.number;
        }
    };
    std::priority_queue<Open> open;
    int64_t number = 0;
    const auto wait = [&](double before, const CollapsedTree::Path& path, int frame, int rank) {
        if (frame == lattice.frames || rank == ranks) return;
        const double chance = before * lattice.at(frame, best[frame * ranks + rank]);
        if (chance > 0) open.push({chance, before, number++, path, frame, rank});
    };
    CollapsedTree collapsed(lattice, tree);
    wait(1, {0, -1}, 0, 0);
    for (int64_t tried = 0; tried < alignments && !open.empty(); tried++) {
        const Open next = open.top();
        open.pop();
        const CollapsedTree::Path path =
            collapsed.longer(next.path, best[next.frame * ranks + next.rank]);
        if (path.node < 0) return;
        wait(next.chance, path, next.frame + 1, 0);
        wait(next.before, next.path, next.frame, next.rank + 1);
    }
}

// A fixed tree of raw paths, collapsed: path i adds a rank of the next frame to path parents[i], -1
// being the empty one.
inline void collapsed_paths(const Lattice& lattice, int64_t count, const int64_t* parents,
                            const int64_t* wanted, LatticeTree& tree) {
    const int ranks = std::min<int>(1 + (int)*std::max_element(wanted, wanted + count),
                                    lattice.symbols);
    const std::vector<int64_t> best = likeliest_symbols(lattice, ranks);
    CollapsedTree collapsed(lattice, tree);
    struct Known {
        CollapsedTree::Path path;
        int frames;
    };
    std::vector<Known> known;
    for (int64_t i = 0; i < count; i++) {
        const Known above = parents[i] < 0 ? Known{{0, -1}, 0} : known[parents[i]];
        known.push_back({{-1, -1}, above.frames + 1});
        if (above.path.node < 0 || above.frames >= lattice.frames || wanted[i] >= ranks) continue;
        known[i].path = collapsed.longer(above.path, best[above.frames * ranks + wanted[i]]);
    }
}

}  // namespace draftwood
