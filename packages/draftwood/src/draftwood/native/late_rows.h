// Rows of a text that a trained head has yet to take in: its newest tokens, and the target's states
// at them.
#pragma once

#include <cmath>

#include "head.h"
#include "source.h"

namespace draftwood {

// As HeadSession says (heads.cpp); the last behind a take() of the root and what came before it.
int32_t head_take(HeadSession& session, const FusionInput& features, const int64_t* tokens,
                  int64_t count, Successors& found, int32_t threads);
int32_t head_level(HeadSession& session, const int64_t* parents, const int64_t* tokens,
                   int64_t count, Successors& found, int32_t threads);
int32_t head_draft(HeadSession& session, const FusionInput& features, const int64_t* tokens,
                   int64_t count, Successors& found, HeadTree& tree, int32_t threads);

// A row that holds states needs the token behind it, so the newest waits for the root. A head that
// reads tokens alone takes in the root's own row, before the root is learnt.
class LateRows {
public:
    // `layers` [reads] of the target, whose inputs the head reads.
    LateRows(const int32_t* layers, int32_t reads, int64_t width)
        : layers(layers, layers + reads), width(width), states(reads) {}

    int64_t count() const { return (int64_t)tokens.size(); }

    // What became text of a pass; of a longer path the `newest` nodes alone.
    void add(const VerifiedTree& verified, int64_t newest) {
        for (int64_t i = std::max<int64_t>(verified.length - newest, 0); i < verified.length; i++) {
            const int64_t node = verified.path[i];
            if (i == 0 && knows_root) continue;
            for (size_t read = 0; read < layers.size(); read++) {
                const float* state = verified.hidden[layers[read]] + node * width;
                states[read].insert(states[read].end(), state, state + width);
            }
            tokens.push_back(verified.tokens[node]);
        }
        knows_root = false;
        if (count() > newest) forget(count() - newest);
    }

    // The oldest.
    void forget(int64_t some) {
        tokens.erase(tokens.begin(), tokens.begin() + some);
        for (auto& each : states) each.erase(each.begin(), each.begin() + some * width);
    }

    // `act(features, tokens, count)` takes in all rows, the root behind them.
    template <class Act>
    int32_t take(int64_t root, Act act) {
        if (!layers.empty()) tokens.erase(tokens.begin());
        tokens.push_back(root);
        knows_root = layers.empty();
        std::vector<const void*> features;
        for (const auto& each : states) features.push_back(each.data());
        FusionInput fused{};
        fused.features = features.data(), fused.feature_stride = width;
        const int32_t odd = act(fused, tokens.data(), count());
        tokens.clear();
        for (auto& each : states) each.clear();
        return odd;
    }

private:
    const std::vector<int32_t> layers;
    const int64_t width;
    std::vector<int64_t> tokens;
    std::vector<std::vector<float>> states;
    bool knows_root = false;  // the root's row was taken in before it is learnt
};

}  // namespace draftwood
