// Trees of what frames say, equal neighbours merged and blanks dropped (heads/lattice.py, which has
// the recursions).
#pragma once

#include <map>
#include <queue>
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

// One rank of each frame, the last of them above 0 at frame `last`.
struct Alignment {
    double chance;
    std::vector<int> ranks;
    int last;

    // of equal products the smaller ranks go first
    bool operator<(const Alignment& other) const {
        if (chance != other.chance) return chance < other.chance;
        return ranks != other.ranks ? ranks > other.ranks : last > other.last;
    }
};

// The likeliest alignments of the `ranks` likeliest symbols of each frame, each collapsed (Wen et
// al. 2024, arXiv:2412.00061). At most so many alignments are tried.
inline void collapsed_alignments(const Lattice& lattice, int ranks, int64_t alignments,
                                 LatticeTree& tree) {
    ranks = std::min(ranks, lattice.symbols), tree.nodes = 0;
    std::vector<int64_t> best((size_t)lattice.frames * ranks);
    for (int frame = 0; frame < lattice.frames; frame++)
        topk_of(lattice.probs + (int64_t)frame * lattice.symbols, lattice.symbols, ranks,
                &best[(size_t)frame * ranks]);
    const auto symbol = [&](int frame, int rank) { return best[(size_t)frame * ranks + rank]; };
    std::priority_queue<Alignment> waiting;
    const auto wait = [&](std::vector<int> of, int last) {
        double chance = 1;
        for (int frame = 0; frame < lattice.frames; frame++)
            chance *= lattice.at(frame, symbol(frame, of[frame]));
        waiting.push({chance, std::move(of), last});
    };
    std::map<std::vector<int64_t>, int> known{{{}, 0}};
    wait(std::vector<int>(lattice.frames, 0), 0);
    for (int64_t tried = 0; tried < alignments && !waiting.empty(); tried++) {
        const Alignment next = waiting.top();
        waiting.pop();
        std::vector<int64_t> text;
        int parent = 0;
        for (int frame = 0; frame < lattice.frames; frame++) {
            const int64_t said = symbol(frame, next.ranks[frame]);
            const bool again = frame && said == symbol(frame - 1, next.ranks[frame - 1]);
            if (again || said == lattice.symbols - 1 || (int)text.size() == tree.depth) continue;
            text.push_back(said);
            const auto [node, is_new] = known.try_emplace(text, 0);
            if (is_new && tree.nodes == tree.most) return;
            if (is_new) node->second = tree.add(said, parent);
            parent = node->second;
        }
        for (int frame = next.last; frame < lattice.frames; frame++) {
            if (next.ranks[frame] + 1 == ranks) continue;
            std::vector<int> longer = next.ranks;
            longer[frame]++;
            wait(std::move(longer), frame);
        }
    }
}

}  // namespace draftwood
