// A group of inputs of eight rows as products in 8-bit integers read it.
#pragma once

#include "formats.h"

namespace draftwood {

constexpr int MOST_ROWS = 8;  // rows whose sums fit into registers together

// What products read of eight rows beside a group of bytes; each for the whole group, then for its
// first and its second 16 inputs.
struct GroupFacts {
    float scales[MOST_ROWS];
    float sums[3][MOST_ROWS];           // of the inputs
    int32_t corrections[3][MOST_ROWS];  // for the zero point: -128 times the sum of the bytes
};

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#define DRAFTWOOD_BLOCKS

// A group of eight rows as bytes, all at once: nothing is added up across lanes.
struct GroupOfRows {
    __m256i bytes[MOST_ROWS];  // by row

    // Rows behind the first `count` are zeros.
    GroupOfRows(const float* const* values, int count) {
        __m512 parts[MOST_ROWS][2];
        __m256 most[MOST_ROWS];
        __mmask8 odd = 0;
#pragma GCC unroll 8
        for (int i = 0; i < MOST_ROWS; i++) {
            const __mmask16 all = i < count ? 0xffff : 0;
            const float* row = values[i < count ? i : 0];
            for (int half = 0; half < 2; half++) {
                parts[i][half] = _mm512_maskz_loadu_ps(all, row + half * LANES);
                odd |= (__mmask8)((any_odd(parts[i][half]) ? 1 : 0) << i);
            }
            const __m512 larger =
                _mm512_max_ps(_mm512_abs_ps(parts[i][0]), _mm512_abs_ps(parts[i][1]));
            most[i] = _mm256_max_ps(_mm512_castps512_ps256(larger),
                                    _mm256_castpd_ps(_mm512_extractf64x4_pd(
                                        _mm512_castps_pd(larger), 1)));
        }
        const __m256 largest =
            _mm256_mask_mov_ps(maxima(most), odd, _mm256_set1_ps(NAN));
        const __m256 inverse = _mm256_div_ps(_mm256_set1_ps(127), largest);
        scale = _mm256_div_ps(largest, _mm256_set1_ps(127));
        // 0 and what is far too small have none
        const __mmask8 has_inverse =
            _mm256_cmp_ps_mask(largest, _mm256_setzero_ps(), _CMP_GT_OQ) &
            _mm256_cmp_ps_mask(inverse, _mm256_set1_ps(INFINITY), _CMP_LT_OQ);
        alignas(32) float inverses[MOST_ROWS];
        _mm256_store_ps(inverses, inverse);
#pragma GCC unroll 8
        for (int i = 0; i < MOST_ROWS; i++) {
            const __mmask16 kept = has_inverse >> i & 1 ? 0xffff : 0;
            __m128i halves[2];
            for (int half = 0; half < 2; half++)
                halves[half] = _mm512_maskz_cvtsepi32_epi8(
                    kept, _mm512_cvtps_epi32(
                              _mm512_mul_ps(parts[i][half], _mm512_set1_ps(inverses[i]))));
            bytes[i] = _mm256_set_m128i(halves[1], halves[0]);
        }
    }

    // Words [WORDS][rows], and what products read beside them.
    void put(uint32_t* words, GroupFacts& facts) const {
        __m256i turned[WORDS];
        turn_words(turned);
        __m256i totals[3] = {_mm256_setzero_si256(), _mm256_setzero_si256(),
                             _mm256_setzero_si256()};
#pragma GCC unroll 8
        for (int i = 0; i < WORDS; i++) {
            _mm256_storeu_si256((__m256i*)(words + i * MOST_ROWS), turned[i]);
            __m256i& own = totals[1 + i / (WORDS / 2)];
            own = _mm256_dpbusd_epi32(own, _mm256_set1_epi8(1), turned[i]);
        }
        totals[0] = _mm256_add_epi32(totals[1], totals[2]);
        _mm256_storeu_ps(facts.scales, scale);
        for (int part = 0; part < 3; part++) {
            _mm256_storeu_ps(facts.sums[part],
                             _mm256_mul_ps(scale, _mm256_cvtepi32_ps(totals[part])));
            _mm256_storeu_si256((__m256i*)facts.corrections[part],
                                _mm256_sub_epi32(_mm256_setzero_si256(),
                                                 _mm256_slli_epi32(totals[part], 7)));
        }
    }

private:
    __m256 scale;  // by row; no number where a value is none or infinite

    static bool any_odd(__m512 values) {
        return _mm512_cmp_ps_mask(_mm512_abs_ps(values), _mm512_set1_ps(INFINITY), _CMP_NLT_UQ);
    }

    // The largest lane of each.
    static __m256 maxima(const __m256 (&rows)[MOST_ROWS]) {
        __m256 fours[2];
        for (int i = 0; i < 2; i++) {
            __m256d pairs[2];
            for (int j = 0; j < 2; j++) {
                const __m256 a = rows[4 * i + 2 * j], b = rows[4 * i + 2 * j + 1];
                pairs[j] = _mm256_castps_pd(
                    _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)));
            }
            fours[i] = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(pairs[0], pairs[1])),
                                     _mm256_castpd_ps(_mm256_unpackhi_pd(pairs[0], pairs[1])));
        }
        return _mm256_max_ps(_mm256_permute2f128_ps(fours[0], fours[1], 0x20),
                             _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
    }

    // Word by word what lies row by row.
    void turn_words(__m256i (&turned)[WORDS]) const {
        __m256i pairs[8], fours[8];
        for (int i = 0; i < 8; i += 2) {
            pairs[i] = _mm256_unpacklo_epi32(bytes[i], bytes[i + 1]);
            pairs[i + 1] = _mm256_unpackhi_epi32(bytes[i], bytes[i + 1]);
        }
        for (int i = 0; i < 8; i += 4)
            for (int j = 0; j < 2; j++) {
                fours[i + 2 * j] = _mm256_unpacklo_epi64(pairs[i + j], pairs[i + 2 + j]);
                fours[i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs[i + j], pairs[i + 2 + j]);
            }
        for (int i = 0; i < 4; i++) {
            turned[i] = _mm256_permute2x128_si256(fours[i], fours[4 + i], 0x20);
            turned[4 + i] = _mm256_permute2x128_si256(fours[i], fours[4 + i], 0x31);
        }
    }
};

#endif

}  // namespace draftwood
