// Matrices laid out in the order in which they are read, in four formats, and their products with a
// few rows.
//
// A tile is 16 outputs. Within a tile the inputs run from first to last, so one pass over memory
// gives 16 results, and each result is added up in the order of the inputs: a row's product does
// not depend on the rows beside it.
#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace draftwood {

constexpr int GROUP = 32;      // inputs that share a scale
constexpr int MOST_ROWS = 8;   // rows whose sums fit into registers together
// groups between what is read and what is fetched from memory; pages end the CPU's own guess
constexpr int AHEAD = 16;    

enum WeightType : int32_t {
    FLOAT32 = 0,
    BFLOAT16 = 1,
    INT8 = 2,  // weight = scale * (byte - 128), one scale per group
    INT4 = 3,  // weight = scale * nibble + offset, one pair per group, as in GGUF's Q4_1
};

struct Matrix {
    int32_t kind, outputs, inputs;
    float factor;            // what all scales and offsets must be multiplied with
    // [tiles][inputs][16], in units of 1, 2 or 4 inputs per lane; see pack()
    const void* weights;   
    const float16* scales;   // [tiles][groups][16]
    const float16* offsets;  // the same, in INT4
    const float* bias;       // [outputs], or null
};

inline int ceil_div(int number, int unit) { return (number + unit - 1) / unit; }
inline int tiles(const Matrix& matrix) { return ceil_div(matrix.outputs, LANES); }
inline int groups(const Matrix& matrix) { return ceil_div(matrix.inputs, GROUP); }

// Inputs that the products of this kind read at a time, packed into one 32-bit word.
inline int inputs_per_word(WeightType kind) { return kind == FLOAT32 ? 1 : kind == BFLOAT16 ? 2 : 4; }

// Rows of activations as the products want them: eight rows side by side, word by word, so that all
// that is read of them lies at fixed distances. In the 8-bit formats each group of 32 inputs has a
// scale of its own.
struct Rows {
    WeightType kind = FLOAT32;
    int width = 0;  // inputs, rounded up to whole groups
    std::vector<uint32_t> words;   // [blocks][words of a row][8]
    std::vector<float> scales;     // [blocks][groups][8]
    std::vector<float> sums;       // the same: sum of a group's inputs
    std::vector<int32_t> centres;  // the same: what 128 times the bytes of a group come to, negated

    void reserve(WeightType of, int rows, int inputs) {
        kind = of, width = ceil_div(inputs, GROUP) * GROUP;
        size_t size = (size_t)ceil_div(rows, MOST_ROWS) * MOST_ROWS * width;
        if (words.size() < size / inputs_per_word(kind)) words.resize(size / inputs_per_word(kind));
        if (scales.size() < size / GROUP)
            scales.resize(size / GROUP), sums.resize(size / GROUP), centres.resize(size / GROUP);
    }

    const uint32_t* words_of(int block) const {
        return &words[(size_t)block * MOST_ROWS * (width / inputs_per_word(kind))];
    }
    size_t groups_of(int block) const { return (size_t)block * MOST_ROWS * (width / GROUP); }

    // Encode inputs [from, from + GROUP) of a row; there are `count` of them, and zeros behind.
    void encode(int row, int from, const float* values, int count) {
        float group[GROUP]{};
        std::copy(values, values + count, group);
        union {
            float floats[GROUP];
            bfloat16 halves[GROUP];
            int8_t bytes[GROUP];
            uint32_t all[GROUP];
        } coded;
        if (kind == FLOAT32) std::copy(group, group + GROUP, coded.floats);
        else if (kind == BFLOAT16)
            store(coded.halves, load(group)),
                store(coded.halves + LANES, load(group + LANES));
        else
            to_bytes(group, coded.bytes,
                     groups_of(row / MOST_ROWS) + from / GROUP * MOST_ROWS + row % MOST_ROWS);
        const int per_word = inputs_per_word(kind);
        uint32_t* to =
            &words[((size_t)(row / MOST_ROWS) * (width / per_word) + from / per_word) * MOST_ROWS];
        for (int i = 0; i < GROUP / per_word; i++)
            to[i * MOST_ROWS + row % MOST_ROWS] = coded.all[i];
    }

private:
    void to_bytes(const float* group, int8_t* bytes, size_t place) {
        Floats parts[2] = {load(group), load(group + LANES)};
        float most = maximum(larger(absolute(parts[0]), absolute(parts[1])));
        float inverse = most > 0 ? 127 / most : 0;
        Ints total{};
        for (int half = 0; half < 2; half++) {
            Ints rounded = nearest(parts[half] * inverse);
            typedef int8_t Bytes __attribute__((vector_size(LANES)));
            Bytes narrow = __builtin_convertvector(rounded, Bytes);
            std::memcpy(bytes + half * LANES, &narrow, sizeof narrow);
            total += rounded;
        }
        int32_t in_all = sum(total);
        scales[place] = most / 127, sums[place] = most / 127 * (float)in_all,
        centres[place] = -128 * in_all;
    }
};

// Adds to each of 16 sums four products of an unsigned with a signed byte.
inline Ints dot_bytes(Ints sums, Ints weights, uint32_t four_inputs) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights,
                                     _mm512_set1_epi32(four_inputs));
#else
    for (int byte = 0; byte < 4; byte++) {
        int32_t input = (int8_t)(four_inputs >> (8 * byte));
        sums += (Ints)(((Words)weights >> (8 * byte)) & 0xffu) * input;
    }
    return sums;
#endif
}

// Adds to each of 16 sums two products of bfloat16 numbers.
inline Floats dot_halves(Floats sums, Words weights, uint32_t two_inputs) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)weights,
                                    (__m512bh)_mm512_set1_epi32(two_inputs));
#else
    sums = fma((Floats)(weights << 16), all(to_float((bfloat16)two_inputs)), sums);
    return fma((Floats)(weights & 0xffff0000u), all(to_float((bfloat16)(two_inputs >> 16))), sums);
#endif
}

// Products of R rows with one tile in 8-bit integers.
template <int R, bool NIBBLES>
inline void product_of_bytes(const Matrix& matrix, const Rows& rows, int block, int tile,
                             Floats* results) {
    const int count = groups(matrix), per_group = NIBBLES ? GROUP / 8 : GROUP / 4;
    const Ints* weights = (const Ints*)matrix.weights + (size_t)tile * count * per_group;
    const float16* scales = matrix.scales + (size_t)tile * count * LANES;
    const float16* offsets = NIBBLES ? matrix.offsets + (size_t)tile * count * LANES : nullptr;
    const uint32_t* words = rows.words_of(block);
    const float *row_scales = &rows.scales[rows.groups_of(block)],
                *row_sums = &rows.sums[rows.groups_of(block)];
    const int32_t* centres = &rows.centres[rows.groups_of(block)];
    Floats sums[R];
    for (int r = 0; r < R; r++) sums[r] = Floats{};
    for (int group = 0; group < count; group++) {
        Ints bytes[GROUP / 4];
        for (int i = 0; i < per_group; i++) {
            Ints stored = weights[i];
            bytes[i] = NIBBLES ? stored & 0x0f0f0f0f : stored;
            if constexpr (NIBBLES) bytes[i + per_group] = (Ints)((Words)stored >> 4) & 0x0f0f0f0f;
        }
        for (int i = 0; i < per_group; i++) __builtin_prefetch(weights + AHEAD * per_group + i);
        __builtin_prefetch(scales + AHEAD * LANES);
        if (NIBBLES) __builtin_prefetch(offsets + AHEAD * LANES);
        Floats scale = load(scales), offset = NIBBLES ? load(offsets) : Floats{};
        for (int r = 0; r < R; r++) {
            Ints products = Ints{} + (NIBBLES ? 0 : centres[r]);
            for (int i = 0; i < GROUP / 4; i++)
                products = dot_bytes(products, bytes[i], words[i * MOST_ROWS + r]);
            sums[r] =
                fma(__builtin_convertvector(products, Floats), scale * row_scales[r], sums[r]);
            if (NIBBLES) sums[r] = fma(offset, all(row_sums[r]), sums[r]);
        }
        weights += per_group, scales += LANES, words += GROUP / 4 * MOST_ROWS;
        if (NIBBLES) offsets += LANES;
        row_scales += MOST_ROWS, row_sums += MOST_ROWS, centres += MOST_ROWS;
    }
    for (int r = 0; r < R; r++) results[r] = sums[r] * matrix.factor;
}

// Products of R rows with T tiles in floats.
template <int R, int T, bool HALVES>
inline void product_of_floats(const Matrix& matrix, const Rows& rows, int block, int tile,
                              Floats* results) {
    const int steps = groups(matrix) * GROUP / (HALVES ? 2 : 1);
    const Floats* weights = (const Floats*)matrix.weights + (size_t)tile * steps;
    const uint32_t* words = rows.words_of(block);
    Floats sums[T][R];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) sums[t][r] = Floats{};
    for (int step = 0; step < steps; step++, words += MOST_ROWS)
        for (int t = 0; t < T; t++) {
            Floats weight = weights[(size_t)t * steps + step];
            __builtin_prefetch(weights + (size_t)t * steps + step + AHEAD * 4);
            for (int r = 0; r < R; r++) {
                if constexpr (HALVES) sums[t][r] = dot_halves(sums[t][r], (Words)weight, words[r]);
                else sums[t][r] = fma(weight, all(((const float*)words)[r]), sums[t][r]);
            }
        }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) results[t * R + r] = sums[t][r];
}

// Hands the products of the first R rows of a block with tiles [first, last) to take(row, tile,
// sixteen results).
template <int R, class Take>
inline void products_of_block(const Matrix& matrix, const Rows& rows, int block, int first,
                              int last, Take& take) {
    constexpr int T = R <= 4 ? 4 : 2;
    Floats results[R * T];
    while (first < last) {
        int done = 1;
        switch (matrix.kind) {
            case INT8: product_of_bytes<R, false>(matrix, rows, block, first, results); break;
            case INT4: product_of_bytes<R, true>(matrix, rows, block, first, results); break;
            case BFLOAT16:
                if (last - first >= T)
                    product_of_floats<R, T, true>(matrix, rows, block, first, results), done = T;
                else product_of_floats<R, 1, true>(matrix, rows, block, first, results);
                break;
            default:
                if (last - first >= T)
                    product_of_floats<R, T, false>(matrix, rows, block, first, results), done = T;
                else product_of_floats<R, 1, false>(matrix, rows, block, first, results);
        }
        for (int t = 0; t < done; t++)
            for (int r = 0; r < R; r++) {
                Floats result = results[t * R + r];
                int output = (first + t) * LANES;
                if (matrix.bias)
                    for (int lane = 0; lane < LANES && output + lane < matrix.outputs; lane++)
                        result[lane] += matrix.bias[output + lane];
                take(block * MOST_ROWS + r, first + t, result);
            }
        first += done;
    }
}

// Products of rows [0, count) with tiles [first, last).
template <class Take>
inline void products(const Matrix& matrix, const Rows& rows, int count, int first, int last,
                     Take take) {
    // few tiles stay cached while many rows pass by
    const int stretch = count > MOST_ROWS ? 4 : last - first;
    for (int tile = first; tile < last; tile += stretch) {
        int end = std::min(last, tile + stretch);
        for (int block = 0; block * MOST_ROWS < count; block++) {
            switch (std::min(MOST_ROWS, count - block * MOST_ROWS)) {
                case 1: products_of_block<1>(matrix, rows, block, tile, end, take); break;
                case 2: products_of_block<2>(matrix, rows, block, tile, end, take); break;
                case 3: products_of_block<3>(matrix, rows, block, tile, end, take); break;
                case 4: products_of_block<4>(matrix, rows, block, tile, end, take); break;
                case 5: products_of_block<5>(matrix, rows, block, tile, end, take); break;
                case 6: products_of_block<6>(matrix, rows, block, tile, end, take); break;
                case 7: products_of_block<7>(matrix, rows, block, tile, end, take); break;
                default: products_of_block<8>(matrix, rows, block, tile, end, take);
            }
        }
    }
}

}  // namespace draftwood
