// Sixteen numbers at a time, on any CPU: GCC and Clang split these vectors where the machine's are
// shorter.
//
// Every result must depend on its own arguments alone, whatever is computed beside it, so
// multiplication and addition are fused where fma() says so and nowhere else (-ffp-contract=off).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace draftwood {

using bfloat16 = uint16_t;
#if defined(__aarch64__)
using float16 = __fp16;  // GCC has no other name for it before version 13
#else
using float16 = _Float16;
#endif
constexpr int LANES = 16;

// For what stands in the innermost loops: compilers give up at some size of the whole.
#define DRAFTWOOD_INLINE inline __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(128)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

// The parts of a vector that one instruction takes, where the compiler would split it.
#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
#define DRAFTWOOD_PARTS
typedef __m256 Part;
typedef uint32_t PartOfWords __attribute__((vector_size(32), may_alias));
DRAFTWOOD_INLINE Part all_of_part(float value) { return _mm256_set1_ps(value); }
DRAFTWOOD_INLINE Part load_part(const float* from) { return _mm256_loadu_ps(from); }
DRAFTWOOD_INLINE void store_part(float* to, Part part) { _mm256_storeu_ps(to, part); }
DRAFTWOOD_INLINE Part fma_parts(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }
DRAFTWOOD_INLINE Part below_part(Part a, Part b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
DRAFTWOOD_INLINE Part below_part_of_ints(Part a, Part b) {
    return (Part)_mm256_cmpgt_epi32((__m256i)b, (__m256i)a);
}
DRAFTWOOD_INLINE Part numbers_of_part(Part a) { return _mm256_cmp_ps(a, a, _CMP_ORD_Q); }
DRAFTWOOD_INLINE Part chosen_part(Part mask, Part yes, Part no) {
    return _mm256_blendv_ps(no, yes, mask);
}
DRAFTWOOD_INLINE int32_t any_of_part(Part mask) { return _mm256_movemask_ps(mask); }
DRAFTWOOD_INLINE Part floats_of_part(const bfloat16* from) {
    const __m128i halves = _mm_loadu_si128((const __m128i*)from);
    return (Part)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
}

constexpr int PARTS_OF_VECTOR = sizeof(Floats) / sizeof(Part);

template <class Result, class Act, class... Given>
DRAFTWOOD_INLINE Result in_parts(Act act, Given... given) {
    Result result;
    for (int part = 0; part < PARTS_OF_VECTOR; part++)
        ((Part*)&result)[part] = act(((const Part*)&given)[part]...);
    return result;
}
#endif

DRAFTWOOD_INLINE Floats all(float value) {
#if defined(__AVX512F__)
    return (Floats)_mm512_set1_ps(value);
#elif defined(DRAFTWOOD_PARTS)
    const Part part = all_of_part(value);
    return in_parts<Floats>([&](Part) { return part; }, Floats{});
#else
    return value - Floats{};
#endif
}

inline Floats load(const float* from) {
    Floats values;
    std::memcpy(&values, from, sizeof values);
    return values;
}

inline Floats load(const bfloat16* from) {
#if defined(DRAFTWOOD_PARTS)
    Floats values;
    for (int part = 0; part < PARTS_OF_VECTOR; part++)
        ((Part*)&values)[part] = floats_of_part(from + part * (LANES / PARTS_OF_VECTOR));
    return values;
#else
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Words) << 16);
#endif
}

inline Floats load(const float16* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__)
    Floats values;
    for (int part = 0; part < 2; part++)
        ((__m256*)&values)[part] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from + part));
    return values;
#else
    Floats values;
    for (int lane = 0; lane < LANES; lane++) values[lane] = (float)from[lane];
    return values;
#endif
}

inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }

// Rounds to nearest, ties to even, as PyTorch does: all that are no numbers become one of them.
inline bfloat16 to_bfloat16(float value) {
    if (value != value) return 0x7fc0;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return (bfloat16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float to_float(float value) { return value; }
inline float to_float(bfloat16 value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}
inline void put(float* to, float value) { *to = value; }
inline void put(bfloat16* to, float value) { *to = to_bfloat16(value); }

inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    for (int part = 0; part < 2; part++)
        ((__m256*)&c)[part] =
            _mm256_fmadd_ps(((__m256*)&a)[part], ((__m256*)&b)[part], ((__m256*)&c)[part]);
    return c;
#elif defined(__ARM_NEON)
    typedef float32x4_t Register __attribute__((may_alias));
    for (int part = 0; part < 4; part++)
        ((Register*)&c)[part] =
            vfmaq_f32(((Register*)&c)[part], ((Register*)&a)[part], ((Register*)&b)[part]);
    return c;
#else
    for (int lane = 0; lane < LANES; lane++) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return c;
#endif
}

// Elsewhere a vector is one part.
#if !defined(DRAFTWOOD_PARTS)
using Part = Floats;
constexpr int PARTS_OF_VECTOR = 1;
DRAFTWOOD_INLINE Part all_of_part(float value) { return all(value); }
DRAFTWOOD_INLINE Part load_part(const float* from) { return load(from); }
DRAFTWOOD_INLINE void store_part(float* to, Part part) { store(to, part); }
DRAFTWOOD_INLINE Part fma_parts(Part a, Part b, Part c) { return fma(a, b, c); }
#endif
constexpr int LANES_OF_PART = LANES / PARTS_OF_VECTOR;

// Sixteen floats in parts, as they lie; the others become floats.
DRAFTWOOD_INLINE void load_parts(const Floats* from, Part (&parts)[PARTS_OF_VECTOR]) {
    for (int part = 0; part < PARTS_OF_VECTOR; part++)
        parts[part] = load_part((const float*)from + part * LANES_OF_PART);
}
DRAFTWOOD_INLINE void load_parts(const Halves* from, Part (&parts)[PARTS_OF_VECTOR]) {
    const Floats values = load((const float16*)from);
    std::memcpy(parts, &values, sizeof values);
}

// Where a < b and where a is a number, all bits; then lane by lane one of two. GCC does these number
// by number where it splits vectors, so it is told how.
#if defined(DRAFTWOOD_PARTS)
DRAFTWOOD_INLINE Ints below(Floats a, Floats b) {
    return in_parts<Ints>([](Part a, Part b) { return below_part(a, b); }, a, b);
}
DRAFTWOOD_INLINE Ints below(Ints a, Ints b) {
    return in_parts<Ints>([](Part a, Part b) { return below_part_of_ints(a, b); }, a, b);
}
DRAFTWOOD_INLINE Ints are_numbers(Floats a) {
    return in_parts<Ints>([](Part a) { return numbers_of_part(a); }, a);
}
DRAFTWOOD_INLINE Floats chosen(Ints mask, Floats yes, Floats no) {
    return in_parts<Floats>([](Part m, Part yes, Part no) { return chosen_part(m, yes, no); }, mask,
                            yes, no);
}
#else
inline Ints below(Floats a, Floats b) { return a < b; }
inline Ints below(Ints a, Ints b) { return a < b; }
inline Ints are_numbers(Floats a) { return a == a; }
inline Floats chosen(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }
#endif

inline void store(bfloat16* to, Floats values) {
    const Words bits = (Words)chosen(are_numbers(values), values, all(NAN));
    Halves halves = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
    std::memcpy(to, &halves, sizeof halves);
}

// Whether a mask has bits.
inline bool any(Ints mask) {
    int32_t found = 0;
#if defined(DRAFTWOOD_PARTS)
    for (int part = 0; part < PARTS_OF_VECTOR; part++) found |= any_of_part(((Part*)&mask)[part]);
#else
    for (int lane = 0; lane < LANES; lane++) found |= mask[lane];
#endif
    return found;
}

inline Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return chosen(below(b, a), a, b);
#endif
}
inline Floats smaller(Floats a, Floats b) { return chosen(below(a, b), a, b); }
inline Floats absolute(Floats a) { return (Floats)((Words)a & 0x7fffffffu); }

// Rounds to nearest; for less than 2^22.
inline Floats rounded(Floats a) {
#if defined(__AVX512F__)
    return (Floats)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_NEAREST_INT);
#else
    return (a + 12582912.0f) - 12582912.0f;
#endif
}
inline Ints nearest(Floats a) { return __builtin_convertvector(rounded(a), Ints); }

// a times 2 to the power of whole numbers from -126 to 127.
inline Floats scaled(Floats a, Floats exponent) {
#if defined(__AVX512F__)
    return (Floats)_mm512_scalef_ps((__m512)a, (__m512)exponent);
#else
    return a * (Floats)((__builtin_convertvector(exponent, Ints) + 127) << 23);
#endif
}

// The lanes' sum and maximum; the latter may overlook what is no number, as larger() does.
inline float sum(Floats values) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)values);
#elif defined(__AVX2__)
    const __m256 eight = _mm256_add_ps(((__m256*)&values)[0], ((__m256*)&values)[1]);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)),
                 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; lane++) values[lane] += values[lane + width];
    return values[0];
#endif
}

inline float maximum(Floats values) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)values);
#elif defined(__AVX2__)
    const __m256 eight = _mm256_max_ps(((__m256*)&values)[0], ((__m256*)&values)[1]);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)),
                 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
    for (int lane = 1; lane < LANES; lane++) values[0] = std::max(values[0], values[lane]);
    return values[0];
#endif
}

inline int32_t sum(Ints values) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)values);
#else
    for (int lane = 1; lane < LANES; lane++) values[0] += values[lane];
    return values[0];
#endif
}

// The sums of four vectors, each added up in the same order: of every four lanes the first and the
// third, the second and the fourth, then both; of the fours likewise.
DRAFTWOOD_INLINE void store_sums(float* to, const Part (&values)[4][PARTS_OF_VECTOR]) {
#if defined(DRAFTWOOD_PARTS)
    Part fours[PARTS_OF_VECTOR];
    for (int part = 0; part < PARTS_OF_VECTOR; part++) {
        __m256d pairs[2];
        for (int i = 0; i < 2; i++) {
            const Part a = values[2 * i][part], b = values[2 * i + 1][part];
            pairs[i] = (__m256d)(_mm256_unpacklo_ps(a, b) + _mm256_unpackhi_ps(a, b));
        }
        fours[part] = (Part)_mm256_unpacklo_pd(pairs[0], pairs[1]) +
                      (Part)_mm256_unpackhi_pd(pairs[0], pairs[1]);
    }
    const Part both = fours[0] + fours[1];
    _mm_storeu_ps(to, _mm256_castps256_ps128(both) + _mm256_extractf128_ps(both, 1));
#else
    Floats pairs[2];
    for (int i = 0; i < 2; i++) {
        const Floats a = values[2 * i][0], b = values[2 * i + 1][0];
        pairs[i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13,
                                           29) +
                   __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30,
                                           15, 31);
    }
    Floats fours = __builtin_shufflevector(pairs[0], pairs[1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24,
                                           25, 12, 13, 28, 29) +
                   __builtin_shufflevector(pairs[0], pairs[1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11,
                                           26, 27, 14, 15, 30, 31);
    fours += __builtin_shufflevector(fours, fours, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12,
                                     13, 14, 15);
    fours += __builtin_shufflevector(fours, fours, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
    std::memcpy(to, &fours, 4 * sizeof(float));
#endif
}

// e to the power of values that are not positive; 2 ulp, and 0 below -87.
inline Floats exponential(Floats x) {
    x = larger(x, all(-87.3f));
    Floats whole = rounded(x * 1.44269504f);
    Floats rest = fma(whole, all(-0.693359375f), x);
    rest = fma(whole, all(2.12194440e-4f), rest);
    Floats power = all(1.9875691500e-4f);
    power = fma(power, rest, all(1.3981999507e-3f));
    power = fma(power, rest, all(8.3334519073e-3f));
    power = fma(power, rest, all(4.1665795894e-2f));
    power = fma(power, rest, all(1.6666665459e-1f));
    power = fma(power, rest, all(5.0000001201e-1f));
    power = fma(power, rest * rest, rest + 1.0f);
    return scaled(power, whole);
}

inline constexpr float LOG2_OF_E = 1.44269504f;

// 2 to the power of values up to 0, and nearly 0 far below; off by at most 4e-6 of the result, a
// 500th of what is lost when that becomes a bfloat16.
inline Floats power_of_two(Floats x) {
    x = larger(x, all(-126.0f));
    const Floats whole = rounded(x), rest = x - whole;
    Floats power = all(9.67604e-3f);
    power = fma(power, rest, all(5.592204e-2f));
    power = fma(power, rest, all(2.4022021e-1f));
    power = fma(power, rest, all(6.9312103e-1f));
    power = fma(power, rest, all(1.0f));
    return scaled(power, whole);
}

}  // namespace draftwood
