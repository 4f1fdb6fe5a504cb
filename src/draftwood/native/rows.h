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

// The place at which the weights before it first exceed `share` (0 to 1) of them all.
inline int64_t place_of_share(const float* weights, int64_t size, double share) {
    constexpr int64_t BLOCK = 256;
    auto sum_of = [&](int64_t from, int64_t to) {
        double sums[LANES]{}, total = 0;
        int64_t i = from;
        for (; i + LANES <= to; i += LANES)
            for (int lane = 0; lane < LANES; lane++) sums[lane] += weights[i + lane];
        for (; i < to; i++) sums[0] += weights[i];
        for (double sum : sums) total += sum;
        return total;
    };
    std::vector<double> blocks;
    double total = 0, before = 0;
    for (int64_t from = 0; from < size; from += BLOCK) {
        blocks.push_back(sum_of(from, std::min(size, from + BLOCK)));
        total += blocks.back();
    }
    size_t block = 0;
    while (block + 1 < blocks.size() && before + blocks[block] <= share * total) before += blocks[block++];
    int64_t last = -1;
    for (int64_t i = (int64_t)block * BLOCK; i < size; i++) {
        if (weights[i] > 0) last = i;
        before += weights[i];
        if (before > share * total) return i;
    }
    if (last >= 0) return last;  // rounding carried the share past the end
    for (last = size - 1; last > 0 && !(weights[last] > 0);) last--;
    return last;
}

}  // namespace draftwood
