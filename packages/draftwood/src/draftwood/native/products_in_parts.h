// Products by vectors in 8-bit integers where vectors are split (vectors.h): registers hold the sums
// of a few rows, all lanes of them, while words of weights and inputs pass by.
#pragma once

#include "products.h"

#if defined(DRAFTWOOD_PARTS)

namespace draftwood {

namespace {

constexpr int ROWS_TOGETHER = 4;  // whose sums registers hold, and a word of weights

// The bytes of a format's codes, from groups of weights.
template <int LOW, int HIGH, bool OFFSET, bool HALVES, bool TABLE>
struct Codes {
    static constexpr int BITS = LOW + HIGH, PIECES = HALVES ? 2 : 1, COUNT = WORDS / PIECES;
    using Sums = Dots<COUNT, OFFSET ? 0 : TABLE || BITS == 8 ? 128 : 1 << (BITS - 1),
                      TABLE       ? most_of_tables(LOW, HIGH)
                      : BITS == 8 ? 128
                                  : (1 << BITS) - 1>;
    using Weights = typename Sums::Weights;

    const Ints& table;

    // Words from `first` on, of one part of the lanes. Codes on even steps stay as they are.
    DRAFTWOOD_INLINE Weights weights(const Ints* planes, int first, int part) const {
        PartOfWords bytes[Sums::TOGETHER];
        unpack_codes<LOW, HIGH>([=](int i) { return ((const PartOfWords*)(planes + i))[part]; },
                                first, first + Sums::TOGETHER, bytes);
        if constexpr (TABLE)
#pragma GCC unroll 2
            for (PartOfWords& some : bytes)
                some = (PartOfWords)_mm256_shuffle_epi8(((const __m256i*)&table)[part],
                                                        (__m256i)some);
        return Weights(bytes);
    }
};

// A piece of a group: all of it, or the half that has scales of its own.
struct Piece {
    const Ints* planes;
    int number;
    const Floats &scale, &offset;
};

// Adds to the sums of R rows of a block, from `row` on, their products with a piece.
template <class Coded, bool OFFSET, int R>
DRAFTWOOD_INLINE void add_piece(const Coded& codes, const Piece& piece, const uint32_t* inputs,
                                const GroupFacts& facts, int row, Part (*sums)[PARTS_OF_VECTOR]) {
    using Sums = typename Coded::Sums;
    const int which = Coded::PIECES > 1 ? 1 + piece.number : 0, from = piece.number * Coded::COUNT;
    Register dots[R][PARTS_OF_VECTOR];
#pragma GCC unroll 2
    for (int run = from; run < from + Coded::COUNT; run += Sums::RUN) {
        Register sums_of_run[R][PARTS_OF_VECTOR]{};
#pragma GCC unroll 8
        for (int word = run; word < run + Sums::RUN; word += Sums::TOGETHER) {
            const typename Coded::Weights weights[] = {codes.weights(piece.planes, word, 0),
                                                       codes.weights(piece.planes, word, 1)};
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                Register words[Sums::TOGETHER];
#pragma GCC unroll 2
                for (int i = 0; i < Sums::TOGETHER; i++)
                    words[i] = all_words(inputs[(word + i) * MOST_ROWS + row + r]);
#pragma GCC unroll 2
                for (int part = 0; part < PARTS_OF_VECTOR; part++) {
                    Register& sum = sums_of_run[r][part];
                    sum = weights[part].added(sum, words);
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int part = 0; part < PARTS_OF_VECTOR; part++) {
                const Register sum = Sums::of_run(sums_of_run[r][part]);
                dots[r][part] = run == from ? sum : _mm256_add_epi32(dots[r][part], sum);
            }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        const Part factor = all_of_part(facts.scales[row + r]);
#pragma GCC unroll 2
        for (int part = 0; part < PARTS_OF_VECTOR; part++) {
            Part& sum = sums[r][part];
            sum = _mm256_fmadd_ps(Sums::whole(dots[r][part], facts.corrections[which][row + r]),
                                  ((const Part*)&piece.scale)[part] * factor, sum);
            if (OFFSET)
                sum = _mm256_fmadd_ps(((const Part*)&piece.offset)[part],
                                      all_of_part(facts.sums[which][row + r]), sum);
        }
    }
}

// Products of R rows of a block with one tile of codes; HALVES of a group may have scales of their
// own, and a TABLE says what codes stand for.
template <int LOW, int HIGH, bool OFFSET, bool HALVES, bool TABLE, int R>
void product_of_block(const Matrix& matrix, const Rows& rows, int block, int tile,
                      Floats* results) {
    using Coded = Codes<LOW, HIGH, OFFSET, HALVES, TABLE>;
    constexpr int BITS = Coded::BITS, REST = R % ROWS_TOGETHER;
    const Coded codes{TABLES.of[matrix.format]};
    const Ints* weights = planes(matrix, tile);
    ScaleReader<kinds_of_codes(LOW, HIGH, OFFSET, HALVES)> reader(info_of(matrix.format).scales,
                                                                 scales(matrix, tile));
    const uint32_t* words = rows.words_of(BYTES, block);
    const GroupFacts* facts = rows.facts_of(block);
    Part sums[R][PARTS_OF_VECTOR]{};
    for (int number = 0, count = groups(matrix); number < count; number++) {
        for (int i = 0; i < BITS; i++) __builtin_prefetch(weights + AHEAD * BITS + i);
        Floats scales[2], offsets[2];
        reader.prefetch(AHEAD);
        reader.next(scales, offsets);
#pragma GCC unroll 2
        for (int i = 0; i < Coded::PIECES; i++) {
            const Piece piece{weights, i, scales[i], offsets[i]};
#pragma GCC unroll 2
            for (int row = 0; row < R - REST; row += ROWS_TOGETHER) {
                // where unpacking is cheap it is done again: registers do not hold its results
                if (HIGH == 0) __asm__("" ::: "memory");
                add_piece<Coded, OFFSET, ROWS_TOGETHER>(codes, piece, words, *facts, row,
                                                        sums + row);
            }
            if constexpr (REST > 0)
                add_piece<Coded, OFFSET, REST>(codes, piece, words, *facts, R - REST,
                                               sums + R - REST);
        }
        weights += BITS, words += WORDS * MOST_ROWS, facts++;
    }
    for (int r = 0; r < R; r++)
        for (int part = 0; part < PARTS_OF_VECTOR; part++)
            ((Part*)&results[r])[part] = sums[r][part] * all_of_part(matrix.factor);
}

// The same of rows of this block and the next. The second time weights lie in the CPU's cache.
template <int LOW, int HIGH, bool OFFSET, bool HALVES, bool TABLE, int R>
void product(const Matrix& matrix, const Rows& rows, int block, int tile, Floats* results) {
    constexpr int FIRST = std::min(R, MOST_ROWS), MORE = R - FIRST;
    product_of_block<LOW, HIGH, OFFSET, HALVES, TABLE, FIRST>(matrix, rows, block, tile, results);
    if constexpr (MORE > 0)
        product_of_block<LOW, HIGH, OFFSET, HALVES, TABLE, MORE>(matrix, rows, block + 1, tile,
                                                                 results + FIRST);
}

}  // namespace

}  // namespace draftwood

#endif
