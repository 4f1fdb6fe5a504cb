// Lays matrices out for matrices.h.
#pragma once

#include "matrices.h"

namespace draftwood {

// Sixteen rows of a matrix [outputs inputs], with zeros outside it.
struct Corner {
    const float* weights;
    int outputs, inputs;

    float operator()(int output, int input) const {
        return output < outputs && input < inputs ? weights[(size_t)output * inputs + input] : 0.0f;
    }
};

// The line scale * nibble + offset through 32 weights, by least squares; the largest distance from
// it.
inline float fit_nibbles(const float* weights, int32_t* nibbles, float& scale, float& offset) {
    float least = *std::min_element(weights, weights + GROUP),
          most = *std::max_element(weights, weights + GROUP);
    double step = (most - least) / 15.0, count = GROUP, n = 0, nn = 0, w = 0, nw = 0;
    for (int i = 0; i < GROUP; i++) {
        nibbles[i] = step > 0 ? (int32_t)std::lround((weights[i] - least) / step) : 0;
        n += nibbles[i], nn += nibbles[i] * nibbles[i], w += weights[i],
            nw += nibbles[i] * (double)weights[i];
    }
    double spread = count * nn - n * n;
    scale = spread > 0 ? (float)((count * nw - n * w) / spread) : 0.0f;
    offset = (float)((w - scale * n) / count);
    float distance = 0;
    for (int i = 0; i < GROUP; i++)
        distance = std::max(distance, std::fabs(weights[i] - (scale * nibbles[i] + offset)));
    return distance;
}

inline float largest(const float* weights, size_t count) {
    float most = 0;
    for (size_t i = 0; i < count; i++) most = std::max(most, std::fabs(weights[i]));
    return most;
}

// Whether every group of 32 weights of an output lies on 16 evenly spaced values, up to what
// rounding to bfloat16 leaves of them. There are whole groups.
inline bool fits_int4(const float* weights, int inputs) {
    for (const float* group = weights; group < weights + inputs; group += GROUP) {
        int32_t nibbles[GROUP];
        float scale, offset;
        if (!(fit_nibbles(group, nibbles, scale, offset) <= largest(group, GROUP) / 128))
            return false;
    }
    return true;
}

// Scales are stored as 16-bit floats in units that put the largest of them at about 1024.
inline float unit_of_scales(const float* weights, int outputs, int inputs, WeightType kind) {
    float most = largest(weights, (size_t)outputs * inputs);
    if (kind == INT8) most /= 127;
    return most > 0 ? std::exp2(std::ceil(std::log2(most)) - 10) : 1.0f;
}

inline void pack_group(const Corner& corner, Matrix& matrix, int tile, int group, int lane) {
    const int per_group = matrix.kind == INT4 ? GROUP / 8 : GROUP / 4;
    size_t place = (size_t)tile * groups(matrix) + group;
    uint8_t* bytes = (uint8_t*)matrix.weights + place * per_group * sizeof(Ints);
    float weights[GROUP];
    int32_t nibbles[GROUP];
    for (int i = 0; i < GROUP; i++) weights[i] = corner(tile * LANES + lane, group * GROUP + i);
    if (matrix.kind == INT4) {
        float scale, offset;
        fit_nibbles(weights, nibbles, scale, offset);
        ((float16*)matrix.scales)[place * LANES + lane] = (float16)(scale / matrix.factor);
        ((float16*)matrix.offsets)[place * LANES + lane] = (float16)(offset / matrix.factor);
        for (int i = 0; i < GROUP / 2; i++)
            bytes[(i / 4 * LANES + lane) * 4 + i % 4] =
                (uint8_t)(nibbles[i] | nibbles[i + GROUP / 2] << 4);
    } else {
        float16 stored = (float16)(largest(weights, GROUP) / 127 / matrix.factor);
        float scale = (float)stored * matrix.factor;
        ((float16*)matrix.scales)[place * LANES + lane] = stored;
        for (int i = 0; i < GROUP; i++) {
            float rounded = scale > 0 ? std::nearbyint(weights[i] / scale) : 0.0f;
            bytes[(i / 4 * LANES + lane) * 4 + i % 4] =
                (uint8_t)(std::clamp(rounded, -127.0f, 127.0f) + 128);
        }
    }
}

inline void set_factor(const float* weights, Matrix& matrix) {
    matrix.factor = 1;
    if (matrix.kind == INT8 || matrix.kind == INT4)
        matrix.factor =
            unit_of_scales(weights, matrix.outputs, matrix.inputs, (WeightType)matrix.kind);
}

// Fill a tile of the memory that `matrix` points to.
inline void pack_tile(const float* weights, Matrix& matrix, int tile) {
    Corner corner{weights, matrix.outputs, matrix.inputs};
    const int width = groups(matrix) * GROUP;
    for (int lane = 0; lane < LANES; lane++)
        for (int group = 0; group < groups(matrix); group++) {
            if (matrix.kind == INT8 || matrix.kind == INT4) {
                pack_group(corner, matrix, tile, group, lane);
                continue;
            }
            for (int input = group * GROUP; input < (group + 1) * GROUP; input++) {
                float weight = corner(tile * LANES + lane, input);
                if (matrix.kind == FLOAT32)
                    ((float*)matrix.weights)[((size_t)tile * width + input) * LANES + lane] =
                        weight;
                else
                    ((bfloat16*)
                         matrix.weights)[(((size_t)tile * width + input) / 2 * LANES + lane) * 2 +
                                         input % 2] = to_bfloat16(weight);
            }
        }
}

// The weight that `pack_tile` stored for an output of a tile.
inline float stored_weight(const Matrix& matrix, int tile, int lane, int input) {
    const size_t width = (size_t)groups(matrix) * GROUP;
    if (matrix.kind == FLOAT32)
        return ((const float*)matrix.weights)[((size_t)tile * width + input) * LANES + lane];
    if (matrix.kind == BFLOAT16)
        return to_float(
            ((const bfloat16*)
                 matrix.weights)[(((size_t)tile * width + input) / 2 * LANES + lane) * 2 +
                                 input % 2]);
    const int per_group = matrix.kind == INT4 ? GROUP / 8 : GROUP / 4;
    const int i = matrix.kind == INT4 ? input % (GROUP / 2) : input % GROUP;
    const size_t place = (size_t)tile * groups(matrix) + input / GROUP;
    const uint8_t* bytes = (const uint8_t*)matrix.weights + place * per_group * sizeof(Ints);
    const int byte = bytes[(i / 4 * LANES + lane) * 4 + i % 4];
    const float scale = (float)matrix.scales[place * LANES + lane] * matrix.factor;
    if (matrix.kind == INT8) return scale * (float)(byte - 128);
    const int nibble = input % GROUP < GROUP / 2 ? byte & 15 : byte >> 4;
    return scale * (float)nibble + (float)matrix.offsets[place * LANES + lane] * matrix.factor;
}

// The reverse of `pack_tile`: weights [outputs inputs].
inline void unpack_tile(const Matrix& matrix, int tile, float* weights) {
    for (int lane = 0; lane < LANES && tile * LANES + lane < matrix.outputs; lane++)
        for (int input = 0; input < matrix.inputs; input++)
            weights[(size_t)(tile * LANES + lane) * matrix.inputs + input] =
                stored_weight(matrix, tile, lane, input);
}

}  // namespace draftwood
