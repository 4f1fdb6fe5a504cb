// Attention over keys and values that are stored in 8 bits, by products of integers.
//
// The numbers of one head and token share a scale. Queries and weights are rounded to 14 bits, of
// which two products take a half each, so that nearly all that is lost is what the cache lost. Sums
// of integers are exact: they are the same in whatever order and with whatever instructions.
#pragma once

#include "attention.h"

namespace draftwood {

constexpr int QUAD = 4;  // bytes that one product takes
constexpr int LOW_BITS = 7, LOW_STEPS = 1 << LOW_BITS;
constexpr float MOST_BYTE = 127, MOST_QUERY = 127 * LOW_STEPS, MOST_WEIGHT = 127 * LOW_STEPS + 124;
constexpr int KEY_ZERO = 128;  // what keys are stored with, so that none is negative

// Bytes of a head's numbers.
inline int padded_dim(int dim) { return (dim + LANES - 1) / LANES * LANES; }

// One head's keys and values in the cache, and their scales.
struct ByteCache {
    KeysAndValues<uint8_t> bytes;
    KeysAndValues<float> scales;
};

typedef uint8_t Bytes __attribute__((vector_size(LANES)));

// The lowest byte of each of 16 numbers, which are below 2^15.
inline void store_bytes(void* to, Ints values) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)values));
#elif defined(__AVX2__)
    const __m256i* halves = (const __m256i*)&values;
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(halves[0], halves[1]), 0xd8);
    words = _mm256_and_si256(words, _mm256_set1_epi16(0xff));
    words = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x08);
    _mm_storeu_si128((__m128i*)to, _mm256_castsi256_si128(words));
#else
    const Bytes bytes = __builtin_convertvector((Words)values, Bytes);
    std::memcpy(to, &bytes, sizeof bytes);
#endif
}

// Up to 16 values, the others 0.
inline Floats load_some(const float* from, int count) {
    if (count >= LANES) return load(from);
    Floats values{};
    std::memcpy(&values, from, count * sizeof(float));
    return values;
}

// The largest absolute value; not a number where a value is none or infinite.
inline float largest_size(const float* values, int dim) {
    Floats most{}, odd{};
    for (int i = 0; i < dim; i += LANES) {
        const Floats some = load_some(values + i, dim - i);
        most = larger(most, absolute(some)), odd += some * 0.0f;
    }
    return maximum(most) + sum(odd);
}

// What values are multiplied with so that none is beyond `most`, and 0 for hardly anything and for
// what is no number.
inline float inverse_scale(float largest, float most) {
    return largest > 1e-30f ? most / largest : 0;
}

// Up to 16 values as whole steps.
inline Ints steps_of(const float* from, int count, float inverse) {
    return inverse > 0 ? nearest(load_some(from, count) * inverse) : Ints{};
}

// Keys or values [dim] of one head as a row of bytes; returns their scale.
inline float encode_row(const float* values, int dim, int zero, uint8_t* row) {
    const int padded = padded_dim(dim);
    const float largest = largest_size(values, dim), inverse = inverse_scale(largest, MOST_BYTE);
    for (int i = 0; i < padded; i += LANES)
        store_bytes(row + i, steps_of(values + i, dim - i, inverse) + zero);
    return largest / MOST_BYTE;
}

// A query in halves: [2][words of a half] words of four bytes, then what sums of each half begin
// with, and the scale.
struct ByteQuery {
    const uint32_t* words;
    int count;  // of words of a half

    static int size(int dim) { return 2 * padded_dim(dim) / QUAD + 3; }

    int32_t start(int half) const { return (int32_t)words[2 * count + half]; }

    float scale() const {
        float number;
        std::memcpy(&number, words + 2 * count + 2, sizeof number);
        return number;
    }
};

inline void encode_byte_query(const float* query, int dim, uint32_t* words) {
    const int padded = padded_dim(dim);
    const float largest = largest_size(query, dim), scale = largest / MOST_QUERY,
                inverse = inverse_scale(largest, MOST_QUERY);
    uint8_t* bytes = (uint8_t*)words;
    int32_t totals[2]{};
    for (int i = 0; i < padded; i += LANES) {
        const Ints whole = steps_of(query + i, dim - i, inverse),
                   high = (whole + LOW_STEPS / 2) >> LOW_BITS, low = whole - (high << LOW_BITS);
        store_bytes(bytes + i, high), store_bytes(bytes + padded + i, low);
        totals[0] += sum(high), totals[1] += sum(low);
    }
    uint32_t* rest = words + 2 * padded / QUAD;
    for (int half = 0; half < 2; half++) rest[half] = (uint32_t)(-KEY_ZERO * totals[half]);
    std::memcpy(rest + 2, &scale, sizeof scale);
}

// Averages over one block, of encoded queries.
void attend_block_in_bytes(const Visibility& visibility, const Together& some,
                           const ByteCache& stored, const Queries<uint32_t>& query_of,
                           Bench& bench);

}  // namespace draftwood
