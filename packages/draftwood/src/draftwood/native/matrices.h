// Matrices in the formats of formats.h, and the rows that products.h multiplies with them.
//
// Within a tile of 16 outputs the inputs run from first to last, so one pass over memory gives 16
// results, and each result is added up in the order of the inputs: a row's product does not depend
// on the rows beside it.
#pragma once

#include <algorithm>
#include <vector>

#include "amx.h"
#include "dots.h"
#include "group_of_rows.h"

namespace draftwood {

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

// Rows of activations as the products want them: eight rows side by side, word by word, so that all
// that is read of them lies at fixed distances.
struct Rows {
    int encodings = 0, width = 0;                 // inputs, rounded up to whole groups
    std::vector<uint32_t> floats, halves, bytes;  // [blocks][words of a row][8]
    std::vector<GroupFacts> facts;                // [blocks][groups]
    bool for_unit = false;  // whether bytes are also kept as the unit of amx.h reads them
    std::vector<Ints> unit_bytes;  // [blocks of 16 rows][groups], each of bytes [16][GROUP]

    void reserve(int of, int rows, int inputs) {
        encodings = of, width = ceil_div(inputs, GROUP) * GROUP;
        size_t size = (size_t)ceil_div(rows, MOST_ROWS) * MOST_ROWS * width;
        const auto grow = [&](auto& values, Encoding encoding, size_t count) {
            if ((encodings & encoding) && values.size() < count) values.resize(count);
        };
        grow(floats, FLOATS, size), grow(halves, HALVES, size / 2), grow(bytes, BYTES, size / 4);
        grow(facts, BYTES, size / GROUP / MOST_ROWS);
        for_unit = (encodings & BYTES) && takes_unit(rows, true);  // some matrix may
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
        if (encodings & ~BYTES) put_floats(row, from, group);
        if (encodings & BYTES) {
            int8_t rounded[GROUP];
            const size_t place = (size_t)(row / MOST_ROWS) * (width / GROUP) + from / GROUP;
            to_bytes(group, rounded, facts[place], row % MOST_ROWS);
            put(bytes, 4, row, from, rounded);
            if (for_unit) std::memcpy(unit_bytes_of(row, from), rounded, sizeof rounded);
        }
    }

    // The same of the rows of a block, the first `rows` of which are at values[i]; the others of the
    // block are nobody's, and become zeros where that is faster.
    void encode_block(int block, int rows, int from, const float* const* values, int count) {
        const int first = block * MOST_ROWS;
#if defined(DRAFTWOOD_BLOCKS)
        if ((encodings & BYTES) && count == GROUP) {
            for (int i = 0; (encodings & ~BYTES) && i < rows; i++)
                put_floats(first + i, from, values[i]);
            const size_t place = (size_t)block * (width / GROUP) + from / GROUP;
            GroupOfRows coded(values, rows);
            coded.put(&bytes[place * MOST_ROWS * WORDS], facts[place]);
            for (int i = 0; for_unit && i < rows; i++)
                std::memcpy(unit_bytes_of(first + i, from), &coded.bytes[i], GROUP);
            return;
        }
#endif
        for (int i = 0; i < rows; i++) encode(first + i, from, values[i], count);
    }

private:
    void put_floats(int row, int from, const float* group) {
        if (encodings & FLOATS) put(floats, 1, row, from, group);
        if (!(encodings & HALVES)) return;
        bfloat16 rounded[GROUP];
        store(rounded, load(group)), store(rounded + LANES, load(group + LANES));
        put(halves, 2, row, from, rounded);
    }

    int8_t* unit_bytes_of(int row, int from) {
        return (int8_t*)bytes_for_unit(row / UNIT_ROWS) + (size_t)from * UNIT_ROWS +
               row % UNIT_ROWS * GROUP;
    }

    template <class Number>
    void put(std::vector<uint32_t>& words, int per_word, int row, int from, const Number* values) {
        uint32_t coded[GROUP];
        std::memcpy(coded, values, GROUP * sizeof(Number));
        uint32_t* to =
            &words[((size_t)(row / MOST_ROWS) * (width / per_word) + from / per_word) * MOST_ROWS];
        for (int i = 0; i < GROUP / per_word; i++) to[i * MOST_ROWS + row % MOST_ROWS] = coded[i];
    }

    // The scale is no number where a value is none or infinite.
    static void to_bytes(const float* group, int8_t* bytes, GroupFacts& facts, int row) {
        Floats parts[2] = {load(group), load(group + LANES)};
        float most = maximum(larger(absolute(parts[0]), absolute(parts[1]))) +
                     sum(parts[0] * 0.0f + parts[1] * 0.0f);
        float inverse = most > 0 ? 127 / most : 0, scale = most / 127;
        int32_t totals[3]{};
        for (int half = 0; half < 2; half++) {
            Ints rounded = inverse > 0 ? nearest(parts[half] * all(inverse)) : Ints{};
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
    __attribute__((noinline)) void next(Floats* floats) {
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
    ScaleReader<> reader;

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

// The weights of an output in the order of its inputs (packing.cpp).
void read_output(const Matrix& matrix, int output, float* weights);

// The same of a row of blocks, or of floats, as a file stores it (blocks.h).
struct StoredBlocks;
void read_stored(const StoredBlocks& stored, int64_t row, float* weights);

}  // namespace draftwood
