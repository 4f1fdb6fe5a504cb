// Products of queries with keys and averages of values, for up to four heads that share them.
//
// The places that a row sees are listed in the order of its tokens, wherever they lie. All sums run
// along that list, so they do not depend on what else is in the cache.
#pragma once

#include <vector>

#include "vectors.h"

namespace draftwood {

constexpr size_t LINE = 64, PLACES_AHEAD = 12;

// What a row sees of one head's keys or values.
template <class Number>
struct Seen {
    const std::vector<int32_t>& places;
    const Number* start;
    size_t stride;
    int dim;

    // Behind the last place it stands again.
    const Number* operator[](size_t i) const {
        return start + places[std::min(i, places.size() - 1)] * stride;
    }

    // Ask the memory for what is needed a little later.
    void fetch(size_t i) const {
        const char* place = (const char*)(*this)[i + PLACES_AHEAD];
        for (size_t line = 0; line < dim * sizeof(Number); line += LINE)
            __builtin_prefetch(place + line);
    }
};

// A weight in the precision in which values are averaged.
template <class Number>
inline Floats attention_weight(Floats weights) {
    return weights;
}

// Scores [COUNT][padded] of queries [COUNT][dim], four places at a time.
template <int COUNT, class Number>
inline void score(const float* queries, const Seen<Number>& keys, float* scores, size_t padded) {
    const int dim = keys.dim, even = dim / LANES * LANES;
    for (size_t i = 0; i < keys.places.size(); i += 4) {
        const Number* four[4] = {keys[i], keys[i + 1], keys[i + 2], keys[i + 3]};
        for (int j = 0; j < 4; j++) keys.fetch(i + j);
        Floats sums[COUNT][4]{};
        for (int from = 0; from < even; from += LANES)
            for (int j = 0; j < 4; j++) {
                Floats key = load(four[j] + from);
                for (int head = 0; head < COUNT; head++)
                    sums[head][j] = fma(load(queries + head * dim + from), key, sums[head][j]);
            }
        for (int head = 0; head < COUNT; head++) {
            for (int j = 0; j < 4; j++)
                for (int k = even; k < dim; k++)
                    sums[head][j][0] += queries[head * dim + k] * to_float(four[j][k]);
            store_sums(scores + head * padded + i, sums[head]);
        }
    }
}

// Averages [COUNT][dim] of dimensions [from, from + 16 * PARTS) by weights [COUNT][padded] that sum
// to `totals`.
template <int COUNT, int PARTS, class Number>
inline void average_part(const float* weights, size_t padded, const Floats* totals,
                         const Seen<Number>& values, int from, float* results) {
    Floats sums[COUNT][PARTS]{};
    for (size_t i = 0; i < values.places.size(); i++) {
        const Number* value = values[i] + from;
        values.fetch(i);
        for (int part = 0; part < PARTS; part++) {
            Floats numbers = load(value + part * LANES);
            for (int head = 0; head < COUNT; head++)
                sums[head][part] = fma(all(weights[head * padded + i]), numbers, sums[head][part]);
        }
    }
    for (int head = 0; head < COUNT; head++)
        for (int part = 0; part < PARTS; part++)
            store(results + head * values.dim + from + part * LANES,
                  sums[head][part] / totals[head]);
}

template <int COUNT, class Number>
inline void average(const float* weights, size_t padded, const Floats* totals,
                    const Seen<Number>& values, float* results) {
    int from = 0;
    for (; from + 4 * LANES <= values.dim; from += 4 * LANES)
        average_part<COUNT, 4>(weights, padded, totals, values, from, results);
    for (; from + LANES <= values.dim; from += LANES)
        average_part<COUNT, 1>(weights, padded, totals, values, from, results);
    for (; from < values.dim; from++)
        for (int head = 0; head < COUNT; head++) {
            float average = 0;
            for (size_t i = 0; i < values.places.size(); i++)
                average += weights[head * padded + i] * to_float(values[i][from]);
            results[head * values.dim + from] = average / totals[head][0];
        }
}

#if defined(__AVX512BF16__)
// In bfloat16 the CPU multiplies pairs at once. Queries are split into two numbers, so that they
// lose nothing.

typedef uint16_t Pairs __attribute__((vector_size(64)));
constexpr int TWICE = 2 * LANES;

inline Pairs load_pairs(const bfloat16* from) {
    Pairs pairs;
    std::memcpy(&pairs, from, sizeof pairs);
    return pairs;
}

inline Floats add_products(Floats sums, Pairs a, Pairs b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
}

template <>
inline Floats attention_weight<bfloat16>(Floats weights) {
    Words bits = (Words)weights;
    return (Floats)((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}

template <int COUNT, int DIM>
inline void score_pairs(const float* queries, const Seen<bfloat16>& keys, float* scores,
                        size_t padded) {
    Pairs coarse[COUNT][DIM / TWICE], fine[COUNT][DIM / TWICE];
    for (int head = 0; head < COUNT; head++)
        for (int part = 0; part < DIM / TWICE; part++) {
            bfloat16 split[2][TWICE];
            for (int i = 0; i < TWICE; i++) {
                float query = queries[head * DIM + part * TWICE + i];
                split[0][i] = to_bfloat16(query);
                split[1][i] = to_bfloat16(query - to_float(split[0][i]));
            }
            coarse[head][part] = load_pairs(split[0]),
            fine[head][part] = load_pairs(split[1]);
        }
    for (size_t i = 0; i < keys.places.size(); i += 4) {
        Floats sums[COUNT][4]{};
        for (int j = 0; j < 4; j++) {
            const bfloat16* key = keys[i + j];
            keys.fetch(i + j);
            for (int part = 0; part < DIM / TWICE; part++) {
                Pairs pairs = load_pairs(key + part * TWICE);
                for (int head = 0; head < COUNT; head++) {
                    sums[head][j] = add_products(sums[head][j], pairs, coarse[head][part]);
                    sums[head][j] = add_products(sums[head][j], pairs, fine[head][part]);
                }
            }
        }
        for (int head = 0; head < COUNT; head++) store_sums(scores + head * padded + i, sums[head]);
    }
}

template <int COUNT>
inline void score(const float* queries, const Seen<bfloat16>& keys, float* scores, size_t padded) {
    if (keys.dim == 64) return score_pairs<COUNT, 64>(queries, keys, scores, padded);
    if (keys.dim == 128) return score_pairs<COUNT, 128>(queries, keys, scores, padded);
    return score<COUNT, bfloat16>(queries, keys, scores, padded);
}

// Two places at a time: the numbers of both stand side by side.
template <int COUNT>
inline void average_pairs(const float* weights, size_t padded, const Floats* totals,
                          const Seen<bfloat16>& values, int from, float* results) {
    Floats sums[COUNT][4]{};
    const size_t width = values.places.size();
    for (size_t i = 0; i < width; i += 2) {
        const bfloat16 *first = values[i] + from, *second = values[i + 1] + from;
        values.fetch(i), values.fetch(i + 1);
        Pairs sides[4];
        for (int part = 0; part < 2; part++) {
            __m512i a = (__m512i)load_pairs(first + part * TWICE),
                    b = (__m512i)load_pairs(second + part * TWICE);
            sides[2 * part] = (Pairs)_mm512_unpacklo_epi16(a, b);
            sides[2 * part + 1] = (Pairs)_mm512_unpackhi_epi16(a, b);
        }
        for (int head = 0; head < COUNT; head++) {
            uint32_t two[2];  // their lower halves are zero
            std::memcpy(two, weights + head * padded + i, sizeof two);
            Pairs weight =
                (Pairs)_mm512_set1_epi32((int)(two[0] >> 16 | (i + 1 < width ? two[1] : 0)));
            for (int side = 0; side < 4; side++)
                sums[head][side] = add_products(sums[head][side], sides[side], weight);
        }
    }
    for (int head = 0; head < COUNT; head++)
        for (int part = 0; part < 2; part++) {
            Floats low = sums[head][2 * part] / totals[head],
                   high = sums[head][2 * part + 1] / totals[head];
            float* to = results + head * values.dim + from + part * TWICE;
            store(to, __builtin_shufflevector(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20,
                                              21, 22, 23));
            store(to + LANES, __builtin_shufflevector(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12,
                                                      13, 14, 15, 28, 29, 30, 31));
        }
}

template <int COUNT>
inline void average(const float* weights, size_t padded, const Floats* totals,
                    const Seen<bfloat16>& values, float* results) {
    if (values.dim % (4 * LANES))
        return average<COUNT, bfloat16>(weights, padded, totals, values, results);
    for (int from = 0; from < values.dim; from += 4 * LANES)
        average_pairs<COUNT>(weights, padded, totals, values, from, results);
}
#endif

}  // namespace draftwood
