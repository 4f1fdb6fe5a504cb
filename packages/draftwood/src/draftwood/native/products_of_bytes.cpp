// Products by vectors, in 8-bit integers.
#include "products.h"
#include "products_in_parts.h"

namespace draftwood {

namespace {

#if !defined(DRAFTWOOD_PARTS)

// What a group of weights says: its bytes, and scales and offsets of its first and second 16 inputs,
// or in the first place those of all.
struct GroupOfWeights {
    Ints bytes[WORDS];
    Floats scale[2], offset[2];
};

// Adds to the sums of R rows of a block their products with a group.
template <bool OFFSET, bool HALVES, int R>
DRAFTWOOD_INLINE void add_group(const GroupOfWeights& group, const uint32_t* words,
                                const GroupFacts& facts, Floats* sums) {
    constexpr bool ZERO_POINT = !OFFSET;  // no format has both
    constexpr int TOGETHER = std::min(R, DOTS_TOGETHER), PARTS = HALVES ? 2 : 1,
                  COUNT = WORDS / PARTS;
    static_assert(R % TOGETHER == 0);
#pragma GCC unroll 8
    for (int first = 0; first < R; first += TOGETHER)
#pragma GCC unroll 2
        for (int part = 0; part < PARTS; part++) {
            const int which = HALVES ? 1 + part : 0;
            Ints dots[TOGETHER];
            dot_bytes<TOGETHER>(group.bytes + part * COUNT, ZERO_POINT,
                                words + part * COUNT * MOST_ROWS + first, MOST_ROWS, COUNT,
                                facts.corrections[which] + first, dots);
#pragma GCC unroll 8
            for (int i = 0; i < TOGETHER; i++) {
                const int row = first + i;
                sums[row] = fma(__builtin_convertvector(dots[i], Floats),
                                group.scale[part] * all(facts.scales[row]), sums[row]);
                if constexpr (OFFSET)
                    sums[row] = fma(group.offset[part], all(facts.sums[which][row]), sums[row]);
            }
        }
}

// Products of R rows, of a block and the next, with one tile of codes; HALVES of a group may have
// scales of their own. Codes have a table, whether they need one or not.
template <int LOW, int HIGH, bool OFFSET, bool HALVES, bool, int R>
void product(const Matrix& matrix, const Rows& rows, int block, int tile, Floats* results) {
    constexpr int BITS = LOW + HIGH, FIRST = std::min(R, MOST_ROWS), MORE = R - FIRST;
    const FormatInfo& info = info_of(matrix.format);
    const Unpacker<LOW, HIGH> unpack(matrix.format);
    const Ints* weights = planes(matrix, tile);
    ScaleReader<kinds_of_codes(LOW, HIGH, OFFSET, HALVES)> reader(info.scales, scales(matrix, tile));
    const uint32_t *words = rows.words_of(BYTES, block), *more_words = words;
    const GroupFacts *facts = rows.facts_of(block), *more_facts = facts;
    if constexpr (MORE > 0)
        more_words = rows.words_of(BYTES, block + 1), more_facts = rows.facts_of(block + 1);
    Floats sums[R];
    for (int r = 0; r < R; r++) sums[r] = Floats{};
    for (int number = 0, count = groups(matrix); number < count; number++) {
        GroupOfWeights group;
        unpack(weights, group.bytes);
        for (int i = 0; i < BITS; i++) __builtin_prefetch(weights + AHEAD * BITS + i);
        reader.prefetch(AHEAD);
        reader.next(group.scale, group.offset);
        add_group<OFFSET, HALVES, FIRST>(group, words, *facts, sums);
        weights += BITS, words += WORDS * MOST_ROWS, facts++;
        if constexpr (MORE > 0) {
            add_group<OFFSET, HALVES, MORE>(group, more_words, *more_facts, sums + FIRST);
            more_words += WORDS * MOST_ROWS, more_facts++;
        }
    }
    for (int r = 0; r < R; r++) results[r] = sums[r] * all(matrix.factor);
}

#endif

template <int LOW, int HIGH, bool OFFSET, bool HALVES, bool TABLE = false>
Product product_of(int rows) {
    static constexpr Product by_rows[] = {
        product<LOW, HIGH, OFFSET, HALVES, TABLE, 1>,
        product<LOW, HIGH, OFFSET, HALVES, TABLE, 2>,
        product<LOW, HIGH, OFFSET, HALVES, TABLE, 3>,
        product<LOW, HIGH, OFFSET, HALVES, TABLE, 4>,
        product<LOW, HIGH, OFFSET, HALVES, TABLE, 5>,
        product<LOW, HIGH, OFFSET, HALVES, TABLE, 6>,
        product<LOW, HIGH, OFFSET, HALVES, TABLE, 7>,
        product<LOW, HIGH, OFFSET, HALVES, TABLE, 8>,
        product<LOW, HIGH, OFFSET, HALVES, TABLE, 12>,
        product<LOW, HIGH, OFFSET, HALVES, TABLE, 16>,
    };
    if (rows > MOST_ROWS) return by_rows[rows <= 12 ? 8 : 9];
    return by_rows[rows - 1];
}

}  // namespace

Product product_of_bytes(const Matrix& matrix, int rows) {
    const FormatInfo& info = info_of(matrix.format);
    const bool offset = has_offsets(info.scales), halves = has_half_groups(info.scales);
    switch (info.low * 10 + info.high) {
        case 20: return product_of<2, 0, true, true>(rows);
        case 21:
            return halves ? product_of<2, 1, false, true>(rows)
                          : product_of<2, 1, false, false, true>(rows);
        case 40:
            if (offset) return product_of<4, 0, true, false>(rows);
            return has_table(info) ? product_of<4, 0, false, false, true>(rows)
                                   : product_of<4, 0, false, false, false>(rows);
        case 41:
            return offset ? product_of<4, 1, true, false>(rows)
                          : product_of<4, 1, false, false>(rows);
        case 42: return product_of<4, 2, false, true>(rows);
        default: return product_of<8, 0, false, false>(rows);
    }
}

}  // namespace draftwood
