// Matrices in the formats of formats.h and their products with a few rows.
//
// Within a tile of 16 outputs the inputs run from first to last, so one pass over memory gives 16
// results, and each result is added up in the order of the inputs: a row's product does not depend
// on the rows beside it.
#pragma once

#include <algorithm>
#include <vector>

#include "amx.h"
#include "dots.h"
#include "formats.h"

namespace draftwood {

constexpr int MOST_ROWS = 8;  // rows whose sums fit into registers together
// groups between what is read and what is fetched from memory; pages end the CPU's own guess
constexpr int AHEAD = 16;

// How rows are written for products; a bit each, as a model's matrices may want several.
enum Encoding : int32_t {
    FLOATS = 1,  // float32
    HALVES = 2,  // bfloat16
    BYTES = 4,   // 8-bit integers, each 32 with a scale of their own
};

struct Matrix {
    int32_t format, outputs, inputs;
    int32_t encoding;     // of the rows that it is multiplied with
    float factor;         // what all scales and offsets must be multiplied with
    const void* weights;  // [tiles][groups]: planes of bits, or floats
    const void* scales;   // [tiles][blocks], see Scales
    const float* bias;    // [outputs], or null
};

inline int tiles(const Matrix& matrix) { return ceil_div(matrix.outputs, LANES); }
inline int groups(const Matrix& matrix) { return ceil_div(matrix.inputs, GROUP); }

// Vectors of the planes of a tile.
inline size_t planes_of_tile(const Matrix& matrix) {
    return (size_t)groups(matrix) * bits_of(matrix.format);
}
inline const Ints* planes(const Matrix& matrix, int tile) {
    return (const Ints*)matrix.weights + tile * planes_of_tile(matrix);
}
inline size_t scale_bytes_of_tile(const Matrix& matrix) {
    const int blocks = ceil_div(matrix.inputs, block_of(matrix.format));
    return (size_t)blocks * scale_bytes(info_of(matrix.format).scales);
}
inline const uint8_t* scales(const Matrix& matrix, int tile) {
    return (const uint8_t*)matrix.scales + tile * scale_bytes_of_tile(matrix);
}

// What products read of eight rows beside a group of bytes; each for the whole group, then for its
// first and its second 16 inputs.
struct GroupFacts {
    float scales[MOST_ROWS];
    float sums[3][MOST_ROWS];           // of the inputs
    int32_t corrections[3][MOST_ROWS];  // for the zero point: -128 times the sum of the bytes
};

// Rows of activations as the products want them: eight rows side by side, word by word, so that all
// that is read of them lies at fixed distances.
struct Rows {
    int encodings = 0, width = 0;                 // inputs, rounded up to whole groups
    std::vector<uint32_t> floats, halves, bytes;  // [blocks][words of a row][8]
    std::vector<GroupFacts> facts;                // [blocks][groups]
    bool for_unit = false;         // whether bytes are also kept as the unit of amx.h reads them
    std::vector<Ints> unit_bytes;  // [blocks of 16 rows][groups], each of bytes [16][GROUP]

    void reserve(int of, int rows, int inputs) {
        encodings = of, width = ceil_div(inputs, GROUP) * GROUP;
        size_t size = (size_t)ceil_div(rows, MOST_ROWS) * MOST_ROWS * width;
        const auto grow = [&](auto& values, Encoding encoding, size_t count) {
            if ((encodings & encoding) && values.size() < count) values.resize(count);
        };
        grow(floats, FLOATS, size), grow(halves, HALVES, size / 2), grow(bytes, BYTES, size / 4);
        grow(facts, BYTES, size / GROUP / MOST_ROWS);
        for_unit = (encodings & BYTES) && takes_unit(rows);
        size = (size_t)ceil_div(rows, UNIT_ROWS) * UNIT_ROWS * width;
        if (for_unit) grow(unit_bytes, BYTES, size / sizeof(Ints));
    }

    const uint32_t* words_of(Encoding encoding, int block) const {
        const size_t row = (size_t)block * MOST_ROWS * width;
        if (encoding == FLOATS) return &floats[row];
        return encoding == HALVES ? &halves[row / 2] : &bytes[row / 4];
    }
    const GroupFacts* facts_of(int block) const { return &facts[(size_t)block * (width / GROUP)]; }
    const int8_t* bytes_for_unit(int block) const {
        return (const int8_t*)unit_bytes.data() + (size_t)block * UNIT_ROWS * width;
    }

    // Encode inputs [from, from + GROUP) of a row; there are `count` of them, and zeros behind.
    void encode(int row, int from, const float* values, int count) {
        float group[GROUP]{};
        std::copy(values, values + count, group);
        if (encodings & FLOATS) put(floats, 1, row, from, group);
        if (encodings & HALVES) {
            bfloat16 rounded[GROUP];
            store(rounded, load(group)), store(rounded + LANES, load(group + LANES));
            put(halves, 2, row, from, rounded);
        }
        if (encodings & BYTES) {
            int8_t rounded[GROUP];
            const size_t place = (size_t)(row / MOST_ROWS) * (width / GROUP) + from / GROUP;
            to_bytes(group, rounded, facts[place], row % MOST_ROWS);
            put(bytes, 4, row, from, rounded);
            if (for_unit)
                std::memcpy((int8_t*)bytes_for_unit(row / UNIT_ROWS) + (size_t)from * UNIT_ROWS +
                                row % UNIT_ROWS * GROUP,
                            rounded, sizeof rounded);
        }
    }

private:
    template <class Number>
    void put(std::vector<uint32_t>& words, int per_word, int row, int from, const Number* values) {
        uint32_t coded[GROUP];
        std::memcpy(coded, values, GROUP * sizeof(Number));
        uint32_t* to =
            &words[((size_t)(row / MOST_ROWS) * (width / per_word) + from / per_word) * MOST_ROWS];
        for (int i = 0; i < GROUP / per_word; i++) to[i * MOST_ROWS + row % MOST_ROWS] = coded[i];
    }

    static void to_bytes(const float* group, int8_t* bytes, GroupFacts& facts, int row) {
        Floats parts[2] = {load(group), load(group + LANES)};
        float most = maximum(larger(absolute(parts[0]), absolute(parts[1])));
        float inverse = most > 0 ? 127 / most : 0, scale = most / 127;
        int32_t totals[3]{};
        for (int half = 0; half < 2; half++) {
            Ints rounded = nearest(parts[half] * inverse);
            typedef int8_t Bytes __attribute__((vector_size(LANES)));
            Bytes narrow = __builtin_convertvector(rounded, Bytes);
            std::memcpy(bytes + half * LANES, &narrow, sizeof narrow);
            totals[1 + half] = sum(rounded);
        }
        totals[0] = totals[1] + totals[2];
        facts.scales[row] = scale;
        for (int part = 0; part < 3; part++)
            facts.sums[part][row] = scale * (float)totals[part],
            facts.corrections[part][row] = -128 * totals[part];
    }
};

// Products of R rows with one tile of codes, in 8-bit integers.
template <int LOW, int HIGH, bool OFFSET, int R>
__attribute__((noinline)) void product_of_bytes(const Matrix& matrix, const Rows& rows, int block,
                                                int tile, Floats* results) {
    constexpr int BITS = LOW + HIGH;
    constexpr bool HALF_GROUPS = LOW == 2 || HIGH == 2;
    const FormatInfo& info = info_of(matrix.format);
    const Unpacker<LOW, HIGH> unpack(matrix.format);
    constexpr bool ZERO_POINT = !OFFSET;  // no format has both
    const Ints* weights = planes(matrix, tile);
    ScaleReader reader(info.scales, scales(matrix, tile));
    const uint32_t* words = rows.words_of(BYTES, block);
    const GroupFacts* facts = rows.facts_of(block);
    Floats sums[R];
    for (int r = 0; r < R; r++) sums[r] = Floats{};
    for (int group = 0, count = groups(matrix); group < count; group++) {
        Ints bytes[WORDS];
        unpack(weights, bytes);
        for (int i = 0; i < BITS; i++) __builtin_prefetch(weights + AHEAD * BITS + i);
        reader.prefetch(AHEAD);
        Floats scale[2], offset[2];
        reader.next(scale, offset);
        for (int r = 0; r < R; r++) {
            const Floats row_scale = all(facts->scales[r]);
            if constexpr (HALF_GROUPS) {
                for (int half = 0; half < 2; half++) {
                    constexpr int COUNT = WORDS / 2;
                    const Ints products = dot_bytes(bytes + half * COUNT, ZERO_POINT,
                                                    words + half * COUNT * MOST_ROWS + r, MOST_ROWS,
                                                    COUNT, facts->corrections[1 + half][r]);
                    sums[r] = fma(__builtin_convertvector(products, Floats),
                                  scale[half] * row_scale, sums[r]);
                    if constexpr (OFFSET)
                        sums[r] = fma(offset[half], all(facts->sums[1 + half][r]), sums[r]);
                }
            } else {
                const Ints products = dot_bytes(bytes, ZERO_POINT, words + r, MOST_ROWS, WORDS,
                                                facts->corrections[0][r]);
                sums[r] =
                    fma(__builtin_convertvector(products, Floats), scale[0] * row_scale, sums[r]);
                if constexpr (OFFSET) sums[r] = fma(offset[0], all(facts->sums[0][r]), sums[r]);
            }
        }
        weights += BITS, words += WORDS * MOST_ROWS, facts++;
    }
    for (int r = 0; r < R; r++) results[r] = sums[r] * matrix.factor;
}

// A tile's weights, group by group, as floats.
class TileReader {
public:
    TileReader(const Matrix& matrix, int tile)
        : format(matrix.format),
          info(info_of(format)),
          factor(matrix.factor),
          weights(planes(matrix, tile)),
          reader(info.scales, scales(matrix, tile)) {}

    // The next 32 inputs of 16 outputs.
    void next(Floats* floats) {
        Ints bytes[WORDS];
        unpack(bytes);
        Floats scale[2]{}, offset[2]{};
        reader.next(scale, offset);
        if (!has_half_groups(info.scales)) scale[1] = scale[0], offset[1] = offset[0];
        const int32_t zero_point = info.zero_point;
        for (int input = 0; input < GROUP; input++) {
            const Ints byte =
                (Ints)(((Words)bytes[input / 4] >> (input % 4 * 8)) & 0xffu) - zero_point;
            const int half = input / (GROUP / 2);
            floats[input] =
                (__builtin_convertvector(byte, Floats) * scale[half] + offset[half]) * factor;
        }
        weights += info.low + info.high;
    }

private:
    const int32_t format;
    const FormatInfo& info;
    const float factor;
    const Ints* weights;
    ScaleReader reader;

    void unpack(Ints* bytes) const {
        switch (info.low * 10 + info.high) {
            case 20: return Unpacker<2, 0>(format)(weights, bytes);
            case 21: return Unpacker<2, 1>(format)(weights, bytes);
            case 40: return Unpacker<4, 0>(format)(weights, bytes);
            case 41: return Unpacker<4, 1>(format)(weights, bytes);
            case 42: return Unpacker<4, 2>(format)(weights, bytes);
            default: return Unpacker<8, 0>(format)(weights, bytes);
        }
    }
};

// Products of R rows with one tile of codes, in floats: nothing of the rows is rounded.
template <int R>
inline void product_of_codes(const Matrix& matrix, const Rows& rows, int block, int tile,
                             Floats* results) {
    TileReader reader(matrix, tile);
    const float* words = (const float*)rows.words_of(FLOATS, block);
    for (int r = 0; r < R; r++) results[r] = Floats{};
    for (int group = 0, count = groups(matrix); group < count; group++) {
        Floats weights[GROUP];
        reader.next(weights);
        for (int input = 0; input < GROUP; input++, words += MOST_ROWS)
            for (int r = 0; r < R; r++) results[r] = fma(weights[input], all(words[r]), results[r]);
    }
}

// Products of R rows with T tiles in floats.
template <int FORMAT, int R, int T>
inline void product_of_floats(const Matrix& matrix, const Rows& rows, int block, int tile,
                              Floats* results) {
    constexpr bool PAIRS = FORMAT == BFLOAT16;  // a step takes two inputs
    using Vector = std::conditional_t<FORMAT == FLOAT16, Halves, Floats>;
    const int steps = groups(matrix) * GROUP / (PAIRS ? 2 : 1);
    const Vector* weights = (const Vector*)matrix.weights + (size_t)tile * steps;
    const uint32_t* words = rows.words_of(PAIRS ? HALVES : FLOATS, block);
    Floats sums[T][R];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) sums[t][r] = Floats{};
    for (int step = 0; step < steps; step++, words += MOST_ROWS)
        for (int t = 0; t < T; t++) {
            const Vector* stored = weights + (size_t)t * steps + step;
            __builtin_prefetch(stored + AHEAD * 4);
            Floats weight;
            if constexpr (FORMAT == FLOAT16) weight = load((const float16*)stored);
            else weight = *stored;
            for (int r = 0; r < R; r++) {
                if constexpr (PAIRS) sums[t][r] = dot_halves(sums[t][r], (Words)weight, words[r]);
                else sums[t][r] = fma(weight, all(((const float*)words)[r]), sums[t][r]);
            }
        }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) results[t * R + r] = sums[t][r];
}

// Products of R rows with one tile, or with `most` where the format takes several at a time;
// returns with how many.
template <int R>
inline int product(const Matrix& matrix, const Rows& rows, int block, int tile, int most,
                   Floats* results) {
    constexpr int T = R <= 4 ? 4 : 2;
    const auto floats = [&](auto format) {
        if (most >= T)
            return product_of_floats<format(), R, T>(matrix, rows, block, tile, results), T;
        return product_of_floats<format(), R, 1>(matrix, rows, block, tile, results), 1;
    };
    switch (matrix.format) {
        case FLOAT32: return floats(std::integral_constant<int, FLOAT32>());
        case FLOAT16: return floats(std::integral_constant<int, FLOAT16>());
        case BFLOAT16: return floats(std::integral_constant<int, BFLOAT16>());
    }
    const FormatInfo& info = info_of(matrix.format);
    if (matrix.encoding == FLOATS)
        return product_of_codes<R>(matrix, rows, block, tile, results), 1;
    const bool offset = has_offsets(info.scales);
    switch (info.low * 10 + info.high) {
        case 20: product_of_bytes<2, 0, true, R>(matrix, rows, block, tile, results); break;
        case 21: product_of_bytes<2, 1, false, R>(matrix, rows, block, tile, results); break;
        case 40:
            if (offset) product_of_bytes<4, 0, true, R>(matrix, rows, block, tile, results);
            else product_of_bytes<4, 0, false, R>(matrix, rows, block, tile, results);
            break;
        case 41:
            if (offset) product_of_bytes<4, 1, true, R>(matrix, rows, block, tile, results);
            else product_of_bytes<4, 1, false, R>(matrix, rows, block, tile, results);
            break;
        case 42: product_of_bytes<4, 2, false, R>(matrix, rows, block, tile, results); break;
        default: product_of_bytes<8, 0, false, R>(matrix, rows, block, tile, results);
    }
    return 1;
}

inline Floats with_bias(const Matrix& matrix, int tile, Floats result) {
    if (matrix.bias)
        for (int lane = 0; lane < LANES && tile * LANES + lane < matrix.outputs; lane++)
            result[lane] += matrix.bias[tile * LANES + lane];
    return result;
}

// Hands the products of the first R rows of a block with tiles [first, last) to take(row, tile,
// sixteen results).
template <int R, class Take>
inline void products_of_block(const Matrix& matrix, const Rows& rows, int block, int first,
                              int last, Take& take) {
    Floats results[R * (R <= 4 ? 4 : 2)];
    while (first < last) {
        const int done = product<R>(matrix, rows, block, first, last - first, results);
        for (int t = 0; t < done; t++)
            for (int r = 0; r < R; r++) {
                const Floats result = with_bias(matrix, first + t, results[t * R + r]);
                take(block * MOST_ROWS + r, first + t, result);
            }
        first += done;
    }
}

// Products of rows [0, count) with tiles [first, last).
template <class Take>
inline void products_by_vectors(const Matrix& matrix, const Rows& rows, int count, int first,
                                int last, Take take) {
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
