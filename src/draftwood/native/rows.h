// Searches through rows of a vocabulary.
#pragma once

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

// Probabilities from logits: e^(value / temperature), divided by the sum over the row.
inline void soften_row(const float* row, int64_t size, float temperature, float* probs) {
    const int64_t whole = size / LANES * LANES;
    const float inverse = 1 / temperature;
    float most = row[0], total = 0;
    Floats highest = all(-INFINITY), sums{};
    for (int64_t i = 0; i < whole; i += LANES) highest = larger(highest, load(row + i));
    for (int64_t i = whole; i < size; i++) most = std::max(most, row[i]);
    most = std::max(most, maximum(highest));
    for (int64_t i = 0; i < whole; i += LANES) {
        Floats score = (load(row + i) - most) * inverse;
        Floats power = score > -87.0f ? exponential(score) : Floats{};  // a logit of minus infinity is never drawn
        store(probs + i, power);
        sums += power;
    }
    for (int64_t i = whole; i < size; i++) total += probs[i] = std::exp((row[i] - most) * inverse);
    const float share = 1 / (total + sum(sums));
    for (int64_t i = 0; i < whole; i += LANES) store(probs + i, load(probs + i) * share);
    for (int64_t i = whole; i < size; i++) probs[i] *= share;
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
