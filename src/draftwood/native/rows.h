// Searches through rows of a vocabulary.
#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace draftwood {

inline bool any_above(Floats values, float bar) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)values, _mm512_set1_ps(bar), _CMP_GT_OQ);
#else
    return maximum(values) > bar;
#endif
}

// The `count` largest of a row, largest first; of equal ones the first.
inline void largest_of(const float* row, int64_t size, int count, int64_t* places) {
    int found = 0;
    auto consider = [&](int64_t place) {
        if (found == count && !(row[place] > row[places[count - 1]])) return;
        int at = found < count ? found++ : count - 1;
        for (; at > 0 && row[place] > row[places[at - 1]]; at--) places[at] = places[at - 1];
        places[at] = place;
    };
    int64_t place = 0;
    for (; place < size && found < count; place++) consider(place);
    for (; place + LANES <= size; place += LANES)
        if (any_above(load(row + place), row[places[count - 1]]))
            for (int lane = 0; lane < LANES; lane++) consider(place + lane);
    for (; place < size; place++) consider(place);
}

inline float largest_value(const float* row, int64_t size) {
    const int64_t whole = size / LANES * LANES;
    Floats highest = all(-INFINITY);
    for (int64_t i = 0; i < whole; i += LANES) highest = larger(highest, load(row + i));
    float most = maximum(highest);
    for (int64_t i = whole; i < size; i++) most = std::max(most, row[i]);
    return most;
}

// Weights of logits, of which `most` is the largest. One of minus infinity is never drawn.
inline Floats softened(Floats logits, float most, float inverse_temperature) {
    Floats score = (logits - most) * inverse_temperature;
    return score > -87.0f ? exponential(score) : Floats{};
}

// Probabilities from logits: e^(value / temperature), divided by the sum over the row.
inline void soften_row(const float* row, int64_t size, float temperature, float* probs) {
    const int64_t whole = size / LANES * LANES;
    const float inverse = 1 / temperature, most = largest_value(row, size);
    float total = 0;
    Floats sums{};
    for (int64_t i = 0; i < whole; i += LANES) {
        Floats power = softened(load(row + i), most, inverse);
        store(probs + i, power);
        sums += power;
    }
    for (int64_t i = whole; i < size; i++) total += probs[i] = std::exp((row[i] - most) * inverse);
    const float share = 1 / (total + sum(sums));
    for (int64_t i = 0; i < whole; i += LANES) store(probs + i, load(probs + i) * share);
    for (int64_t i = whole; i < size; i++) probs[i] *= share;
}

// For each of `count` shares (0 to 1) the place at which the weights up to it first exceed this share of their sum.
// Where drawn tokens are `distinct`, a place has no weight for those after it. Sums are of 64 bits, so that rare tokens
// keep their weight. Where no weight is left the last place fills up.
inline void places_of_shares(
    const float* weights, int64_t size, const double* shares, int count, bool distinct, int64_t* places
) {
    constexpr int64_t BLOCK = 256;
    std::vector<double> blocks((size + BLOCK - 1) / BLOCK);
    auto weight = [&](int64_t place, int drawn) {
        if (distinct && std::find(places, places + drawn, place) != places + drawn) return 0.0;
        return (double)weights[place];
    };
    auto sum_up = [&](int64_t block) {
        double sums[LANES]{}, total = 0;
        const int64_t end = std::min(size, (block + 1) * BLOCK);
        int64_t i = block * BLOCK;
        for (; i + LANES <= end; i += LANES)
            for (int lane = 0; lane < LANES; lane++) sums[lane] += weights[i + lane];
        for (; i < end; i++) sums[0] += weights[i];
        for (double sum : sums) total += sum;
        return total;
    };
    for (size_t block = 0; block < blocks.size(); block++) blocks[block] = sum_up(block);
    for (int draw = 0; draw < count; draw++) {
        double total = 0, before = 0;
        for (double block : blocks) total += block;
        const double goal = shares[draw] * total;
        size_t block = 0, last = blocks.size();
        for (; block < blocks.size(); before += blocks[block++]) {
            if (blocks[block] > 0) last = block;
            if (before + blocks[block] > goal) break;
        }
        if (block == blocks.size()) block = last;  // rounding carried the share past the end
        places[draw] = size - 1;
        if (block == blocks.size()) continue;
        const int64_t end = std::min<int64_t>(size, (block + 1) * BLOCK);
        double left = 0;  // of the block, without what was drawn
        bool found = false;
        for (int64_t i = block * BLOCK; i < end; i++) {
            const double own = weight(i, draw);
            left += own;
            if (own > 0 && !found) places[draw] = i, found = before + left > goal;
        }
        if (distinct) blocks[block] = std::max(0.0, left - weights[places[draw]]);
    }
}

// The share of each of these places, the largest first, in the sum of e^(value / temperature) over a row.
inline void shares_of(
    const float* row, int64_t size, const int64_t* places, int count, float temperature, float* shares
) {
    const float most = row[places[0]], inverse = 1 / temperature;
    Floats sums{};
    float total = 0;
    int64_t place = 0;
    for (; place + LANES <= size; place += LANES) sums += exponential((load(row + place) - most) * inverse);
    for (; place < size; place++) total += std::exp((row[place] - most) * inverse);
    total += sum(sums);
    for (int i = 0; i < count; i++) shares[i] = std::exp((row[places[i]] - most) * inverse) / total;
}

}  // namespace draftwood
