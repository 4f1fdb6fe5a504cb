// Mixtures of experts: which experts a row goes to, and which rows come to an expert.
//
// A row's experts and their shares depend on that row alone. Rows of one expert are multiplied
// together, so each of its weights is read once, and experts that no row goes to are not read.
#pragma once

#include <cmath>
#include <vector>

#include "matrices.h"

namespace draftwood {

struct Expert {
    Matrix gate, up, down;  // nothing is gated where there is no second
};

struct Experts {
    int32_t count, per_row;     // no count: the layer has one network for all rows
    int32_t shares_sum_to_one;  // whether the shares of a row's experts are scaled to do so
    int32_t has_shared;         // whether all rows go to one more, the last
    int32_t is_sigmoid;         // whether shares are sigmoids of the products, not their softmax
    float scale, sum_epsilon;   // of all shares; what is added to a sum that is scaled to one
    const float* router;        // [count][hidden]
    const float* router_bias;   // [count], or null
    const float* shared_gate;   // [hidden]: the logit of what that one counts; null for all
    const float* choice_bias;   // [count], of shares where experts are chosen alone, or null
    const float* router_norm;   // [hidden], of the norm of what the router reads alone, or null
    const float* factors;       // [count]: of each one's share, or null
    const Expert* networks;     // [count + has_shared]

    int all() const { return count + has_shared; }
    int all_per_row() const { return per_row + has_shared; }
    // The most tiles of what is between an expert's products.
    int most_tiles() const {
        const int own = tiles(networks[0].gate);
        return has_shared ? std::max(own, tiles(networks[count].gate)) : own;
    }
};

// One of a row's experts: how much it counts, and where the row is among those of the expert.
struct Choice {
    int32_t expert, group, place;
    float share;
};

// The rows of one expert.
struct ExpertRows {
    int expert = 0;
    std::vector<int> choices;  // numbers of those that chose it
    Rows narrow, wide;         // what its products read
};

inline float dot(const float* a, const float* b, int count) {
    Floats sums{};
    int i = 0;
    for (; i + LANES <= count; i += LANES) sums = fma(load(a + i), load(b + i), sums);
    float total = sum(sums);
    for (; i < count; i++) total += a[i] * b[i];
    return total;
}

inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// Logits become shares, of which all sum to what is given back, or which stand for themselves.
inline float read_shares(const Experts& experts, std::vector<float>& shares) {
    if (experts.is_sigmoid) {
        for (float& share : shares) share = sigmoid(share);
        return 1;
    }
    const float most = *std::max_element(shares.begin(), shares.end());
    float total = 0;
    for (float& share : shares) total += share = std::exp(share - most);
    return total;
}

// The experts of one row and their shares, by number of the expert; the one that all rows go to is
// the last.
inline void choose_experts(const Experts& experts, const float* row, int width, Choice* choices) {
    static thread_local std::vector<float> shares;
    shares.resize(experts.count);
    for (int expert = 0; expert < experts.count; expert++) {
        shares[expert] = dot(experts.router + (size_t)expert * width, row, width);
        if (experts.router_bias) shares[expert] += experts.router_bias[expert];
    }
    const float total = read_shares(experts, shares);
    float kept = 0;
    const auto value = [&](int expert) {
        return experts.choice_bias ? shares[expert] / total + experts.choice_bias[expert]
                                   : shares[expert];
    };
    for (int i = 0; i < experts.per_row; i++) {
        int best = -1;
        for (int expert = 0; expert < experts.count; expert++) {
            bool taken = std::any_of(choices, choices + i,
                                     [&](const Choice& other) { return other.expert == expert; });
            if (!taken && (best < 0 || value(expert) > value(best))) best = expert;
        }
        choices[i] = {best, 0, 0, shares[best] / total};
        kept += choices[i].share;
    }
    for (int i = 0; i < experts.per_row; i++) {
        if (experts.shares_sum_to_one) choices[i].share /= kept + experts.sum_epsilon;
        if (experts.factors) choices[i].share *= experts.factors[choices[i].expert];
        choices[i].share *= experts.scale;
    }
    std::sort(choices, choices + experts.per_row,
              [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
    if (!experts.has_shared) return;
    const float* const gate = experts.shared_gate;
    choices[experts.per_row] = {experts.count, 0, 0, gate ? sigmoid(dot(gate, row, width)) : 1};
}

// Choices sorted by expert: the groups that have rows, which are returned, come first.
inline int group_by_expert(std::vector<Choice>& choices, size_t count, int experts,
                           std::vector<ExpertRows>& groups) {
    std::vector<int> group_of(experts, -1);
    int found = 0;
    for (size_t i = 0; i < count; i++) {
        int& group = group_of[choices[i].expert];
        if (group < 0) {
            group = found++;
            groups[group].expert = choices[i].expert, groups[group].choices.clear();
        }
        choices[i].group = group, choices[i].place = (int)groups[group].choices.size();
        groups[group].choices.push_back((int)i);
    }
    return found;
}

}  // namespace draftwood
