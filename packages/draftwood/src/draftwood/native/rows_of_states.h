// What is done to single rows of hidden states: normed, embedded, encoded for products.
#pragma once

#include "network.h"
#include "products.h"
#include "workshop.h"

namespace draftwood {

// What a norm takes off a row, and what it multiplies the rest with.
struct RowScale {
    float mean, inverse;
};

// Of an RMSNorm, or a LayerNorm where is_layer_norm.
__attribute__((noinline)) inline RowScale scale_of(const Decoder& decoder, const float* values,
                                                   int count, bool is_layer_norm) {
    float mean = 0;
    if (is_layer_norm) {
        double total = 0;
        for (int i = 0; i < count; i++) total += values[i];
        mean = (float)(total / count);
    }
    Floats squares{};
    int i = 0;
    for (; i + LANES <= count; i += LANES) {
        Floats part = load(values + i) - mean;
        squares = fma(part, part, squares);
    }
    float total = sum(squares);
    for (; i < count; i++) total += (values[i] - mean) * (values[i] - mean);
    return {mean, 1.0f / std::sqrt(total / count + decoder.epsilon)};
}

// Values [first, last) of a row, normed. The results may take their place.
inline void put_normed(const float* values, int first, int last, const Norm& norm, RowScale scale,
                       float* results) {
    const Floats mean = all(scale.mean), inverse = all(scale.inverse);
    int i = first;
    for (; i + LANES <= last; i += LANES) {
        const Floats value = (load(values + i) - mean) * inverse * load(norm.weight + i);
        store(results + i, norm.bias ? value + load(norm.bias + i) : value);
    }
    for (; i < last; i++) {
        results[i] = (values[i] - scale.mean) * scale.inverse * norm.weight[i];
        if (norm.bias) results[i] += norm.bias[i];
    }
}

inline void normed(const Decoder& decoder, const float* values, int count, const Norm& norm,
                   bool is_layer_norm, float* results) {
    put_normed(values, 0, count, norm, scale_of(decoder, values, count, is_layer_norm), results);
}

template <class Number>
inline void embed_numbers(const Decoder& decoder, const Number* embedded, float* to) {
    for (int i = 0; i < decoder.hidden; i++) {
        Number scaled;  // rounded, as the model's own embedding does
        put(&scaled, to_float(embedded[i]) * decoder.embedding_scale);
        to[i] = to_float(scaled);
    }
}

inline void embed(const Decoder& decoder, int64_t token, float* to) {
    if (!decoder.embedding) {
        read_output(decoder.embedding_codes, (int)token, to);
        for (int i = 0; i < decoder.hidden; i++) to[i] *= decoder.embedding_scale;
        return;
    }
    const size_t first = (size_t)token * decoder.hidden;
    if (decoder.is_bfloat16) embed_numbers(decoder, (const bfloat16*)decoder.embedding + first, to);
    else embed_numbers(decoder, (const float*)decoder.embedding + first, to);
}

// A row of the target's states of one of the layers that are given.
inline void read_state(const FusionInput& given, int layer, int64_t row, int width, float* to) {
    const int64_t at = given.feature_rows ? given.feature_rows[row] : row,
                  from = at * given.feature_stride;
    const auto widen = [&](const auto* numbers) {
        for (int i = 0; i < width; i++) to[i] = to_float(numbers[from + i]);
    };
    if (given.is_bfloat16) widen((const bfloat16*)given.features[layer]);
    else widen((const float*)given.features[layer]);
}

// The calling thread's, until it asks for the next.
inline float* row_of_floats(int width) {
    static thread_local std::vector<float> row;
    row.resize(width);
    return row.data();
}

inline void encode(Rows& rows, int row, const float* values, int width) {
    for (int from = 0; from < width; from += GROUP)
        rows.encode(row, from, values + from, std::min(GROUP, width - from));
}

// Rows or inputs, the last one excluded.
struct Range {
    int first, last;
};

// Some inputs of some rows, the first of which begins a block. `at(row, from, width)` is where a
// group of them lies, until those of the same row in the next block are asked for. Nobody else
// encodes rows of these blocks there.
template <class At>
inline void encode_blocks(Rows& rows, Range some, Range inputs, At at) {
    const float* values[MOST_ROWS];
    for (int row = some.first; row < some.last; row += MOST_ROWS)
        for (int from = inputs.first; from < inputs.last; from += GROUP) {
            const int count = std::min(MOST_ROWS, some.last - row),
                      width = std::min(GROUP, inputs.last - from);
            for (int i = 0; i < count; i++) values[i] = at(row + i, from, width);
            rows.encode_block(row / MOST_ROWS, count, from, values, width);
        }
}

inline void put_tile(float* row, int tile, int width, Floats values) {
    if ((tile + 1) * LANES <= width) return store(row + tile * LANES, values);
    for (int i = tile * LANES; i < width; i++) row[i] = values[i - tile * LANES];
}

inline void add_tile(float* row, int tile, int width, Floats values) {
    Floats sum{};
    std::memcpy(&sum, row + tile * LANES, std::min(LANES, width - tile * LANES) * sizeof(float));
    put_tile(row, tile, width, sum + values);
}

// Rows times a matrix, by the team: take(row, tile, sixteen results).
template <class Take>
void multiply_together(const Matrix& matrix, const Rows& rows, int count, int threads, Take take) {
    const int64_t pieces = threads == 1 ? 1 : std::min(tiles(matrix), 4 * threads);
    for_each(pieces, threads, [&](int64_t piece) {
        products(matrix, rows, count, (int)(tiles(matrix) * piece / pieces),
                 (int)(tiles(matrix) * (piece + 1) / pieces), take);
    });
}

// Whether all of these are numbers; rows in bytes would hide that they are not.
inline bool are_finite(const float* values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!std::isfinite(values[i])) return false;
    return true;
}

}  // namespace draftwood
