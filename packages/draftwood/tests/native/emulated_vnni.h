// AVX-VNNI in emulation, to be included before everything else on a machine that has AVX2 alone.
#pragma once

#include <immintrin.h>

#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd

// To each 32-bit sum, products of its four unsigned bytes with four signed ones.
inline __m256i emulated_dpbusd(__m256i sums, __m256i weights, __m256i inputs) {
    const __m256i low = _mm256_and_si256(weights, _mm256_set1_epi16(0xff)),
                  low_inputs = _mm256_srai_epi16(_mm256_slli_epi16(inputs, 8), 8),
                  high = _mm256_srli_epi16(weights, 8),
                  high_inputs = _mm256_srai_epi16(inputs, 8);
    return _mm256_add_epi32(sums, _mm256_add_epi32(_mm256_madd_epi16(low, low_inputs),
                                                   _mm256_madd_epi16(high, high_inputs)));
}
