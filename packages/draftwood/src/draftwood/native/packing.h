// Lays matrices out for matrices.h.
#pragma once

#include "matrices.h"
#include "turning.h"
#include "workshop.h"

namespace draftwood {

// Weights [count inputs] of some outputs, by so many threads.
void read_outputs(const Matrix& matrix, const int64_t* outputs, int64_t count, float* weights,
                  int threads);

// Weights [outputs inputs] that are to be laid out: floats, or bfloat16 where `are_halves`, or the
// `chosen` outputs of another matrix.
struct GivenWeights {
    const void* weights;
    bool are_halves;
    int outputs, inputs;
    const Matrix* matrix = nullptr;
    const int64_t* chosen = nullptr;

    // Rows from this output on, in floats; other than floats are read into `room`.
    const float* rows(int output, int count, std::vector<float>& room) const {
        const size_t begin = (size_t)output * inputs, size = (size_t)count * inputs;
        if (matrix) {
            room.resize(size);
            read_outputs(*matrix, chosen + output, count, room.data(), 1);
            return room.data();
        }
        if (!are_halves) return (const float*)weights + begin;
        const bfloat16* from = (const bfloat16*)weights + begin;
        room.resize(size);
        for (size_t i = 0; i < size; i++) room[i] = to_float(from[i]);
        return room.data();
    }

    int rows_of(int tile) const { return std::min(LANES, outputs - tile * LANES); }
};

// Rows of a matrix [outputs inputs], with zeros outside it.
struct Corner {
    const float* weights;
    int outputs, inputs;

    // A group's weights of an output.
    void read(int output, int group, float* into) const {
        const int input = group * GROUP;
        const int count = output < outputs ? std::min(GROUP, inputs - input) : 0;
        std::copy_n(weights + (size_t)output * inputs + input, count, into);
        std::fill(into + count, into + GROUP, 0.0f);
    }
};

// The line scale * nibble + offset through 32 weights, by least squares; the largest distance from
// it. Sums run in lanes side by side: of weights of 16 bits they are exact in any order.
inline float fit_nibbles(const float* weights, int32_t* nibbles, float& scale, float& offset) {
    constexpr int SIDE = 8;
    float lows[SIDE], highs[SIDE];
    std::copy(weights, weights + SIDE, lows), std::copy(weights, weights + SIDE, highs);
    for (int i = SIDE; i < GROUP; i += SIDE)
        for (int lane = 0; lane < SIDE; lane++) {
            const float each = weights[i + lane];
            lows[lane] = each < lows[lane] ? each : lows[lane];
            highs[lane] = highs[lane] < each ? each : highs[lane];
        }
    const float least = *std::min_element(lows, lows + SIDE),
                most = *std::max_element(highs, highs + SIDE);
    const double step = (most - least) / 15.0, count = GROUP;
    int32_t n = 0, nn = 0;
    for (int i = 0; i < GROUP; i++)  // rounds to the nearest, as none is negative
        nibbles[i] = step > 0 ? (int32_t)((weights[i] - least) / step + 0.5) : 0;
    double of_weights[SIDE] = {}, of_products[SIDE] = {};
    for (int i = 0; i < GROUP; i += SIDE)
        for (int lane = 0; lane < SIDE; lane++) {
            of_weights[lane] += weights[i + lane];
            of_products[lane] += nibbles[i + lane] * (double)weights[i + lane];
        }
    for (int i = 0; i < GROUP; i++) n += nibbles[i], nn += nibbles[i] * nibbles[i];
    double w = 0, nw = 0;
    for (int lane = 0; lane < SIDE; lane++) w += of_weights[lane], nw += of_products[lane];
    const double spread = count * nn - (double)n * n;
    scale = spread > 0 ? (float)((count * nw - n * w) / spread) : 0.0f;
    offset = (float)((w - scale * (double)n) / count);
    float distances[SIDE] = {}, distance = 0;
    for (int i = 0; i < GROUP; i += SIDE)
        for (int lane = 0; lane < SIDE; lane++) {
            const float found = std::fabs(weights[i + lane] - (scale * nibbles[i + lane] + offset));
            distances[lane] = distances[lane] < found ? found : distances[lane];
        }
    for (float each : distances) distance = std::max(distance, each);
    return distance;
}

// The largest absolute value; NaN counts for nothing. Lanes side by side, as above.
inline float largest(const float* weights, size_t count) {
    float lanes[LANES] = {};
    const auto put = [&](size_t i, int lane) {
        const float each = std::fabs(weights[i]);
        lanes[lane] = lanes[lane] < each ? each : lanes[lane];
    };
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) put(i + lane, lane);
    for (; i < count; i++) put(i, 0);
    return *std::max_element(lanes, lanes + LANES);
}

// Whether 32 weights lie on 16 evenly spaced values, at most so far from them, up to what rounding
// to bfloat16 leaves.
inline bool is_even(const float* group, float distance) {
    return distance <= largest(group, GROUP) / 128;
}

// Whether every group of 32 weights of an output does. There are whole groups.
inline bool fits_int4(const float* weights, int inputs) {
    for (const float* group = weights; group < weights + inputs; group += GROUP) {
        int32_t nibbles[GROUP];
        float scale, offset;
        if (!is_even(group, fit_nibbles(group, nibbles, scale, offset))) return false;
    }
    return true;
}

// Scales are stored as 16-bit floats in units that put the largest of them at about 1024.
inline float unit_of_scales(float most, int32_t format) {
    if (format == Q8_0) most /= 127;
    return most > 0 ? std::exp2(std::ceil(std::log2(most)) - 10) : 1.0f;
}

// Where a bfloat16 weight lies: two inputs of an output are side by side.
inline size_t place_of_pair(const Matrix& matrix, int tile, int input, int lane) {
    const size_t width = (size_t)groups(matrix) * GROUP;
    return (((size_t)tile * width + input) / 2 * LANES + lane) * 2 + input % 2;
}

// Codes of two groups, or of the last one, become planes. row_of(lane) has those of an output.
template <class RowOf>
inline void put_codes(Matrix& matrix, int tile, int group, int count, RowOf row_of) {
    const FormatInfo& info = info_of(matrix.format);
    const int bits = info.low + info.high;
    Words words[2 * WORDS];
    if (count == 2) turn<1>(row_of, words);
    else turn_words<1>(row_of, WORDS, words);
    Ints* to = (Ints*)planes(matrix, tile) + (size_t)group * bits;
    for (int i = 0; i < count; i++)
        pack_codes(info.low, info.high, (const Ints*)words + i * WORDS, to + i * bits);
}

// A tile's rows of floats as 8-bit or 4-bit codes, with scales made here. Returns whether 4 bits
// hold all of what is there.
inline bool pack_group(const Corner& corner, Matrix& matrix, int tile, int group) {
    bool fits = matrix.format == Q4_1;
    uint8_t codes[LANES][GROUP];
    float16* scales_of_group =
        (float16*)(scales(matrix, tile) +
                   (size_t)group * scale_bytes(info_of(matrix.format).scales));
    for (int lane = 0; lane < LANES; lane++) {
        float weights[GROUP];
        corner.read(lane, group, weights);
        if (matrix.format == Q4_1) {
            int32_t nibbles[GROUP];
            float scale, offset;
            const float distance = fit_nibbles(weights, nibbles, scale, offset);
            fits = fits && is_even(weights, distance);
            scales_of_group[lane] = (float16)(scale / matrix.factor);
            scales_of_group[LANES + lane] = (float16)(offset / matrix.factor);
            for (int i = 0; i < GROUP; i++) codes[lane][i] = (uint8_t)nibbles[i];
        } else {
            // no number where a weight is none, or infinite, which codes cannot say
            const float most = largest(weights, GROUP) +
                               sum(load(weights) * 0.0f + load(weights + LANES) * 0.0f);
            float16 stored = (float16)(most / 127 / matrix.factor);
            float scale = (float)stored * matrix.factor;
            scales_of_group[lane] = stored;
            for (int i = 0; i < GROUP; i++) {
                float rounded = scale > 0 ? std::nearbyint(weights[i] / scale) : 0.0f;
                codes[lane][i] = (uint8_t)(std::clamp(rounded, -127.0f, 127.0f) + 128);
            }
        }
    }
    put_codes(matrix, tile, group, 1, [&](int lane) { return codes[lane]; });
    return fits;
}

inline void set_factor(const GivenWeights& given, Matrix& matrix, int threads) {
    matrix.factor = 1;
    if (!is_quantised(matrix.format)) return;
    std::vector<float> found(tiles(matrix));
    for_each(tiles(matrix), threads, [&](int64_t tile) {
        std::vector<float> room;
        const int count = given.rows_of((int)tile);
        const float* rows = given.rows((int)tile * LANES, count, room);
        found[tile] = largest(rows, (size_t)count * given.inputs);
    });
    matrix.factor = unit_of_scales(*std::max_element(found.begin(), found.end()), matrix.format);
}

// Fill a tile of the memory that `matrix` points to with given weights, as floats, Q8_0 or Q4_1.
// Returns whether 4 bits hold all of them; false in other formats.
inline bool pack_tile(const GivenWeights& given, Matrix& matrix, int tile) {
    std::vector<float> room;
    const int count = given.rows_of(tile);
    const Corner corner{given.rows(tile * LANES, count, room), count, matrix.inputs};
    const size_t width = (size_t)groups(matrix) * GROUP;
    bool fits = matrix.format == Q4_1;
    for (int group = 0; group < groups(matrix); group++) {
        if (is_quantised(matrix.format)) {
            fits &= pack_group(corner, matrix, tile, group);
            continue;
        }
        for (int lane = 0; lane < LANES; lane++) {
            float weights[GROUP];
            corner.read(lane, group, weights);
            for (int i = 0; i < GROUP; i++) {
                const int input = group * GROUP + i;
                const float weight = weights[i];
                const size_t place = ((size_t)tile * width + input) * LANES + lane;
                if (matrix.format == FLOAT32) ((float*)matrix.weights)[place] = weight;
                else if (matrix.format == FLOAT16)
                    ((float16*)matrix.weights)[place] = (float16)weight;
                else
                    ((bfloat16*)matrix.weights)[place_of_pair(matrix, tile, input, lane)] =
                        to_bfloat16(weight);
            }
        }
    }
    return fits;
}

}  // namespace draftwood
