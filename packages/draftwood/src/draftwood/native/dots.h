// Short dot products, with the best instructions that the compiler may use.
//
// Sums of integers are exact, so all ways to add them up give the same bits. Products of bfloat16
// numbers are rounded once per number where they are fused multiplications and additions;
// AVX-512 BF16 rounds otherwise, so the two agree up to rounding only.
#pragma once

#include "vectors.h"

namespace draftwood {

// A vector of the machine's width, and dot_part: to each 32-bit sum it adds four products of a byte
// of weights with a signed one of inputs. Instructions that take both with a sign, or add pairs up
// in 16 bits, subtract the zero point of 128 from weights (SUBTRACTS), where there is one; without
// it no byte is above 127. The others leave that to a correction of the sums.
#if defined(__AVX512VNNI__)
#define DRAFTWOOD_BYTE_DOTS "AVX-512 VNNI"
constexpr bool SUBTRACTS = false;
typedef __m512i Register;
DRAFTWOOD_INLINE Register all_words(uint32_t word) { return _mm512_set1_epi32((int)word); }
DRAFTWOOD_INLINE Register dot_part(Register sums, Register weights, Register inputs, bool) {
    return _mm512_dpbusd_epi32(sums, weights, inputs);
}
#elif defined(__AVXVNNI__)
#define DRAFTWOOD_BYTE_DOTS "AVX-VNNI"
constexpr bool SUBTRACTS = false;
typedef __m256i Register;
DRAFTWOOD_INLINE Register all_words(uint32_t word) { return _mm256_set1_epi32((int)word); }
DRAFTWOOD_INLINE Register dot_part(Register sums, Register weights, Register inputs, bool) {
    return _mm256_dpbusd_avx_epi32(sums, weights, inputs);
}
#elif defined(__AVX512BW__)
#define DRAFTWOOD_BYTE_DOTS "AVX-512"
constexpr bool SUBTRACTS = true;
typedef __m512i Register;
DRAFTWOOD_INLINE Register all_words(uint32_t word) { return _mm512_set1_epi32((int)word); }
// Pairs of products are at most 2 * 128 * 127, so none is saturated.
DRAFTWOOD_INLINE Register dot_part(Register sums, Register weights, Register inputs,
                                   bool has_zero_point) {
    if (has_zero_point) {
        weights = _mm512_xor_si512(weights, _mm512_set1_epi8(-128));
        inputs = _mm512_mask_sub_epi8(inputs, _mm512_movepi8_mask(weights), Register{}, inputs);
        weights = _mm512_abs_epi8(weights);
    }
    const Register pairs = _mm512_maddubs_epi16(weights, inputs);
    return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
#elif defined(__AVX2__)
#define DRAFTWOOD_BYTE_DOTS "AVX2"
constexpr bool SUBTRACTS = true;
typedef __m256i Register;
DRAFTWOOD_INLINE Register all_words(uint32_t word) { return _mm256_set1_epi32((int)word); }
// As with AVX-512.
DRAFTWOOD_INLINE Register dot_part(Register sums, Register weights, Register inputs,
                                   bool has_zero_point) {
    if (has_zero_point) {
        weights = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
        inputs = _mm256_sign_epi8(inputs, weights), weights = _mm256_abs_epi8(weights);
    }
    const Register pairs = _mm256_maddubs_epi16(weights, inputs);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#elif defined(__ARM_FEATURE_MATMUL_INT8)
#define DRAFTWOOD_BYTE_DOTS "NEON I8MM"
constexpr bool SUBTRACTS = false;
typedef int32x4_t Register __attribute__((may_alias));
DRAFTWOOD_INLINE Register all_words(uint32_t word) { return vdupq_n_s32((int)word); }
DRAFTWOOD_INLINE Register dot_part(Register sums, Register weights, Register inputs, bool) {
    return vusdotq_s32(sums, vreinterpretq_u8_s32(weights), vreinterpretq_s8_s32(inputs));
}
#elif defined(__ARM_FEATURE_DOTPROD)
#define DRAFTWOOD_BYTE_DOTS "NEON dot products"
constexpr bool SUBTRACTS = true;
typedef int32x4_t Register __attribute__((may_alias));
DRAFTWOOD_INLINE Register all_words(uint32_t word) { return vdupq_n_s32((int)word); }
DRAFTWOOD_INLINE Register dot_part(Register sums, Register weights, Register inputs,
                                   bool has_zero_point) {
    int8x16_t bytes = vreinterpretq_s8_s32(weights);
    if (has_zero_point) bytes = veorq_s8(bytes, vdupq_n_s8(-128));
    return vdotq_s32(sums, bytes, vreinterpretq_s8_s32(inputs));
}
#endif

// Rows whose dot products should grow side by side: with some instructions each step of a sum waits
// for the one before, and registers hold the sums of several rows.
#if defined(__AVX512VNNI__)
constexpr int DOTS_TOGETHER = 8;
#else
constexpr int DOTS_TOGETHER = 1;
#endif

// For R rows sixteen sums of products of `count` vectors of four bytes of weights, less a zero point
// of 0 or 128, with as many words of four signed bytes, which lie `distance` words apart, those of
// the rows side by side. `corrections` are minus the zero point times the sum of a row's inputs.
// Weights without a zero point are below 128, and no input is -128.
template <int R>
DRAFTWOOD_INLINE void dot_bytes(const Ints* weights, bool has_zero_point, const uint32_t* inputs,
                                int distance, int count, const int32_t* corrections, Ints* dots) {
#if defined(DRAFTWOOD_BYTE_DOTS)
    constexpr int PARTS = sizeof(Ints) / sizeof(Register);
    for (int part = 0; part < PARTS; part++) {
        Register sums[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            sums[r] = all_words(SUBTRACTS || !has_zero_point ? 0 : (uint32_t)corrections[r]);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                sums[r] = dot_part(sums[r], ((const Register*)(weights + i))[part],
                                   all_words(inputs[i * distance + r]), has_zero_point);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) ((Register*)(dots + r))[part] = sums[r];
    }
#else
    for (int r = 0; r < R; r++) {
        Ints sums = Ints{} + (has_zero_point ? corrections[r] : 0);
        for (int i = 0; i < count; i++)
            for (int byte = 0; byte < 4; byte++) {
                const int32_t input = (int8_t)(inputs[i * distance + r] >> (8 * byte));
                sums += (Ints)(((Words)weights[i] >> (8 * byte)) & 0xffu) * input;
            }
        dots[r] = sums;
    }
#endif
}

#if defined(DRAFTWOOD_PARTS)

// How sums of products grow by COUNT words of four bytes of weights. Bytes have a zero point of 0,
// of 128, or of another power of two; less one of 128, else as they are, none is above MOST.
template <int COUNT, int ZERO_POINT, int MOST>
class Dots {
    static constexpr bool HAS_SIGNS = SUBTRACTS && ZERO_POINT == 128;
    static constexpr int HELD = 32767 / (2 * 127 * MOST);  // pairs of products that 16 bits add up
    static constexpr bool IN_PAIRS = SUBTRACTS && HELD >= 4;  // those of a run

public:
    // Words that a sum takes, and those that are added at once.
    static constexpr int RUN = IN_PAIRS && HELD < COUNT ? 4 : COUNT,
                         TOGETHER = SUBTRACTS && !IN_PAIRS && HELD >= 2 ? 2 : 1;

    // TOGETHER words of weights, of one part of the lanes.
    class Weights {
    public:
        DRAFTWOOD_INLINE explicit Weights(const PartOfWords (&bytes)[TOGETHER]) {
#pragma GCC unroll 2
            for (int i = 0; i < TOGETHER; i++) {
                words[i] = (Register)bytes[i];
                if (!HAS_SIGNS) continue;
                signs[i] = _mm256_xor_si256(words[i], _mm256_set1_epi8(-128));
                words[i] = _mm256_abs_epi8(signs[i]);
            }
        }

        // A sum and the products with as many words of inputs, none of whose bytes is -128.
        DRAFTWOOD_INLINE Register added(Register sum, const Register (&inputs)[TOGETHER]) const {
#if defined(__AVXVNNI__)
            return dot_part(sum, words[0], inputs[0], false);
#else
            Register some = pairs(words[0], signs[0], inputs[0]);
            if (IN_PAIRS) return made_here(_mm256_add_epi16(sum, some));
#pragma GCC unroll 2
            for (int i = 1; i < TOGETHER; i++)
                some = _mm256_add_epi16(some, pairs(words[i], signs[i], inputs[i]));
            return made_here(_mm256_add_epi32(sum, of_pairs(some)));
#endif
        }

    private:
        static DRAFTWOOD_INLINE Register pairs(Register word, Register sign, Register input) {
            return _mm256_maddubs_epi16(word, HAS_SIGNS ? _mm256_sign_epi8(input, sign) : input);
        }

        // Compilers would move all additions behind all products, which no registers hold.
        static DRAFTWOOD_INLINE Register made_here(Register sum) {
            __asm__("" : "+x"(sum));
            return sum;
        }

        Register words[TOGETHER], signs[TOGETHER];
    };

    // What the sum of a run is.
    static DRAFTWOOD_INLINE Register of_run(Register sum) { return IN_PAIRS ? of_pairs(sum) : sum; }

    // The sum of all runs in floats. `correction` is that of a zero point of 128.
    static DRAFTWOOD_INLINE Part whole(Register sum, int32_t correction) {
        if (ZERO_POINT > 0 && !HAS_SIGNS)
            sum = _mm256_add_epi32(sum, _mm256_srai_epi32(all_words((uint32_t)correction),
                                                          log2_of(128 / ZERO_POINT)));
        return _mm256_cvtepi32_ps(sum);
    }

private:
    static DRAFTWOOD_INLINE Register of_pairs(Register pairs) {
        return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }

    static constexpr int log2_of(int power) { return power == 1 ? 0 : 1 + log2_of(power / 2); }
};

#endif

// Adds to each sum two products of bfloat16 numbers, which stand in the bits of `weights`.
DRAFTWOOD_INLINE Part dot_halves(Part sums, Part weights, uint32_t two_inputs) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)weights,
                                    (__m512bh)_mm512_set1_epi32(two_inputs));
#elif defined(DRAFTWOOD_PARTS)
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u), inputs = all_words(two_inputs);
    sums = fma_parts((Part)_mm256_slli_epi32((__m256i)weights, 16),
                     (Part)_mm256_slli_epi32(inputs, 16), sums);
    return fma_parts((Part)((__m256i)weights & high), (Part)(inputs & high), sums);
#else
    const Words words = (Words)weights;
    sums = fma((Floats)(words << 16), all(to_float((bfloat16)two_inputs)), sums);
    return fma((Floats)(words & 0xffff0000u), all(to_float((bfloat16)(two_inputs >> 16))), sums);
#endif
}

// The instructions of dot_bytes, null where it has loops alone.
inline const char* byte_instructions() {
#if defined(DRAFTWOOD_BYTE_DOTS)
    return DRAFTWOOD_BYTE_DOTS;
#else
    return nullptr;
#endif
}

// Those of products of floats.
inline const char* float_instructions() {
#if defined(__AVX512BF16__)
    return "AVX-512 BF16";
#elif defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__) && defined(__FMA__)
    return "AVX2";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return nullptr;
#endif
}

}  // namespace draftwood
