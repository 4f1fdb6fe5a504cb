// Rows that the last pass gave for the next places, for chains that are drawn from them in whole
// steps; see drafters/jacobi_sampled.py.
#pragma once

#include "drawn_trees.h"

namespace draftwood {

// CJacobiSettings of structures.py.
struct JacobiSettings {
    // by place from the first draft on: tokens back to the one that a place repeats which no pass
    // has seen; 0 where any token will do. The last holds for all further places.
    const int32_t* backs;
    const int64_t* text;  // before the root, as much of it as `backs` reach
    int64_t places, length, vocabulary;
    int64_t window;  // most rows that are kept
};

class JacobiRows final : public LevelDrafter {
public:
    explicit JacobiRows(const JacobiSettings& given)
        : backs(given.backs, given.backs + given.places),
          text(given.text, given.text + given.length), begun(given.length),
          vocabulary(given.vocabulary), window(given.window) {}

    // Logits of the place behind node `node` of a chain, whose tokens are known up to there; they
    // stay until the next chain.
    const float* row(const int64_t* chain, int64_t node) {
        if (node < seen) return &rows[node * vocabulary];
        if ((int64_t)starts.size() <= node) starts.resize(node + 1);
        const int64_t token = repeated(chain, node);
        starts[node].assign(vocabulary, token < 0 ? 0 : -INFINITY);
        if (token >= 0) starts[node][token] = 0;
        return starts[node].data();
    }

    LevelLogits level(const int64_t* tokens, const int64_t*, int64_t, int64_t first,
                      int32_t) override {
        return {row(tokens, first), vocabulary, vocabulary, nullptr};
    }

    void learn(const VerifiedTree& verified) override {
        for (int64_t i = 0; i < verified.length; i++)
            text.push_back(verified.tokens[verified.path[i]]);
        const int64_t first = verified.path[verified.length - 1] + 1;
        rows.resize(window * vocabulary);
        for (seen = 0; seen < window && first + seen < verified.nodes; seen++) {
            const float* row = verified.logits + (first + seen) * vocabulary;
            if (!std::isfinite(largest_value(row, vocabulary))) break;
            std::copy(row, row + vocabulary, &rows[seen * vocabulary]);
        }
    }

private:
    const std::vector<int32_t> backs;
    std::vector<int64_t> text;  // before the root
    const int64_t begun;        // of it, when the first of the places came
    const int64_t vocabulary, window;
    int64_t seen = 0;  // rows
    std::vector<float> rows;
    std::vector<std::vector<float>> starts;  // by node

    // The token that the place behind a node repeats; -1 for any.
    int64_t repeated(const int64_t* chain, int64_t node) const {
        const int64_t place = (int64_t)text.size() - begun + node, length = text.size();
        const int64_t back = backs[std::min<int64_t>(place, backs.size() - 1)];
        if (back <= 0 || back > length + node + 1) return -1;
        return back <= node + 1 ? chain[node + 1 - back] : text[length + node + 1 - back];
    }
};

}  // namespace draftwood
