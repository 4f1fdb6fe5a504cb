// Products by vectors in 8-bit integers where vectors are split (vectors.h): a part of the lanes at
// a time, so that the few registers there hold its weights while rows pass by.
#pragma once

#include "products.h"

#if defined(DRAFTWOOD_PARTS)

namespace draftwood {

namespace {

// Bytes of words [first, first + COUNT) of a group, of one part of the lanes. Codes on even steps
// stay as they are.
template <int LOW, int HIGH, bool TABLE, int COUNT>
DRAFTWOOD_INLINE void unpack_part(const Ints* planes, const Ints& table, int part, int first,
                                  PartOfWords (&bytes)[COUNT]) {
    unpack_codes<LOW, HIGH>([=](int i) { return ((const PartOfWords*)(planes + i))[part]; }, first,
                            first + COUNT, bytes);
#pragma GCC unroll 8
    for (int i = 0; i < COUNT; i++)
        if (TABLE)
            bytes[i] = (PartOfWords)_mm256_shuffle_epi8(((const __m256i*)&table)[part],
                                                        (__m256i)bytes[i]);
}

// Products of R rows, of a block and the next, with one tile of codes; HALVES of a group may have
// scales of their own, and a TABLE says what codes stand for.
template <int LOW, int HIGH, bool OFFSET, bool HALVES, bool TABLE, int R>
void product(const Matrix& matrix, const Rows& rows, int block, int tile, Floats* results) {
    constexpr int BITS = LOW + HIGH, PIECES = HALVES ? 2 : 1, COUNT = WORDS / PIECES,
                  ZERO_POINT = OFFSET ? 0 : TABLE || BITS == 8 ? 128 : 1 << (BITS - 1),
                  MOST = TABLE ? most_of_tables(LOW, HIGH) : BITS == 8 ? 128 : (1 << BITS) - 1;
    const FormatInfo& info = info_of(matrix.format);
    const Ints* weights = planes(matrix, tile);
    const Ints& table = TABLES.of[matrix.format];
    ScaleReader<kinds_of_codes(LOW, HIGH, OFFSET, HALVES)> reader(info.scales, scales(matrix, tile));
    Part sums[PARTS_OF_VECTOR][R]{};
    for (int number = 0, count = groups(matrix); number < count; number++, weights += BITS) {
        for (int i = 0; i < BITS; i++) __builtin_prefetch(weights + AHEAD * BITS + i);
        Floats scales[2], offsets[2];
        reader.prefetch(AHEAD);
        reader.next(scales, offsets);
#pragma GCC unroll 2
        for (int piece = 0; piece < PIECES; piece++)
#pragma GCC unroll 2
            for (int part = 0; part < PARTS_OF_VECTOR; part++) {
                PartOfWords bytes[COUNT];
                unpack_part<LOW, HIGH, TABLE>(weights, table, part, piece * COUNT, bytes);
                const PartOfWeights<COUNT, ZERO_POINT, MOST> held(bytes);
                const Part scale = ((const Part*)&scales[piece])[part],
                           offset = ((const Part*)&offsets[piece])[part];
                const int which = HALVES ? 1 + piece : 0;
#pragma GCC unroll 2
                for (int first = 0; first < R; first += MOST_ROWS) {
                    const int here = block + first / MOST_ROWS;
                    const uint32_t* words = rows.words_of(BYTES, here) +
                                            (number * WORDS + piece * COUNT) * MOST_ROWS;
                    const GroupFacts& facts = rows.facts_of(here)[number];
#pragma GCC unroll 1
                    for (int row = 0; row < std::min(R - first, MOST_ROWS); row++) {
                        Part& sum = sums[part][first + row];
                        const Part dots = _mm256_cvtepi32_ps(
                            held.dots(words + row, MOST_ROWS, facts.corrections[which][row]));
                        sum = _mm256_fmadd_ps(dots, scale * all_of_part(facts.scales[row]), sum);
                        if (OFFSET)
                            sum = _mm256_fmadd_ps(offset, all_of_part(facts.sums[which][row]), sum);
                    }
                }
            }
    }
    for (int r = 0; r < R; r++)
        for (int part = 0; part < PARTS_OF_VECTOR; part++)
            ((Part*)&results[r])[part] = sums[part][r] * all_of_part(matrix.factor);
}

}  // namespace

}  // namespace draftwood

#endif
