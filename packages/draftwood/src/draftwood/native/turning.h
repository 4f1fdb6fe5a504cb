// Rows of numbers turned, so that 16 of them lie side by side.
#pragma once

#include "vectors.h"

namespace draftwood {

constexpr int LINE_WORDS = 16;  // of 32 bits

// Words of each of 16 rows, where row_of(i) is in memory: turned[word * STEP] has one word of all
// rows.
template <int STEP, class RowOf>
inline void turn_words(RowOf row_of, int words, Words* turned) {
    for (int i = 0; i < LANES; i++) {
        const void* row = row_of(i);
        for (int word = 0; word < words; word++)
            std::memcpy((uint32_t*)(turned + word * STEP) + i, (const uint32_t*)row + word, 4);
    }
}

// The same for 16 words.
template <int STEP, class RowOf>
inline void turn(RowOf row_of, Words* turned) {
#if defined(__AVX512F__)
    __m512i rows[LANES], pairs[LANES];
    for (int i = 0; i < LANES; i++) rows[i] = _mm512_loadu_si512((const void*)row_of(i));
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    // rows[4 * i + j] has words j, 4 + j, 8 + j, 12 + j of rows 4 * i to 4 * i + 3
    for (int j = 0; j < 4; j++) {
        const __m512i low_even = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0x88),
                      low_odd = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0xdd),
                      high_even = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0x88),
                      high_odd = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0xdd);
        turned[j * STEP] = (Words)_mm512_shuffle_i32x4(low_even, high_even, 0x88);
        turned[(4 + j) * STEP] = (Words)_mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        turned[(8 + j) * STEP] = (Words)_mm512_shuffle_i32x4(low_even, high_even, 0xdd);
        turned[(12 + j) * STEP] = (Words)_mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
    }
#else
    turn_words<STEP>(row_of, LINE_WORDS, turned);
#endif
}

}  // namespace draftwood
