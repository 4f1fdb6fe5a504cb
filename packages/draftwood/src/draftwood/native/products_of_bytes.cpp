// Products by vectors, in 8-bit integers.
#include "products.h"

namespace draftwood {

namespace {

// Products of R rows, of a block and the next, with one tile of codes; HALVES of a group may have
// scales of their own.
template <int LOW, int HIGH, bool OFFSET, bool HALVES, int R>
void product(const Matrix& matrix, const Rows& rows, int block,
                                                int tile, Floats* results) {
    constexpr int BITS = LOW + HIGH;
    const FormatInfo& info = info_of(matrix.format);
    const Unpacker<LOW, HIGH> unpack(matrix.format);
    constexpr bool ZERO_POINT = !OFFSET;  // no format has both
    const Ints* weights = planes(matrix, tile);
    ScaleReader<kinds_of_codes(LOW, HIGH, OFFSET, HALVES)> reader(info.scales, scales(matrix, tile));
    const uint32_t *words = rows.words_of(BYTES, block), *more_words = words;
    const GroupFacts *facts = rows.facts_of(block), *more_facts = facts;
    if constexpr (R > MOST_ROWS)
        more_words = rows.words_of(BYTES, block + 1), more_facts = rows.facts_of(block + 1);
    Floats sums[R];
    for (int r = 0; r < R; r++) sums[r] = Floats{};
    for (int group = 0, count = groups(matrix); group < count; group++) {
        Ints bytes[WORDS];
        unpack(weights, bytes);
        for (int i = 0; i < BITS; i++) __builtin_prefetch(weights + AHEAD * BITS + i);
        reader.prefetch(AHEAD);
        Floats scale[2], offset[2];
        reader.next(scale, offset);
#pragma GCC unroll 16
        for (int row = 0; row < R; row++) {
            const bool is_more = R > MOST_ROWS && row >= MOST_ROWS;
            const uint32_t* inputs = is_more ? more_words : words;
            const GroupFacts& own = is_more ? *more_facts : *facts;
            const int r = is_more ? row - MOST_ROWS : row;
            const Floats row_scale = all(own.scales[r]);
            if constexpr (HALVES) {
                for (int half = 0; half < 2; half++) {
                    constexpr int COUNT = WORDS / 2;
                    const Ints products = dot_bytes(bytes + half * COUNT, ZERO_POINT,
                                                    inputs + half * COUNT * MOST_ROWS + r,
                                                    MOST_ROWS, COUNT, own.corrections[1 + half][r]);
                    sums[row] = fma(__builtin_convertvector(products, Floats),
                                    scale[half] * row_scale, sums[row]);
                    if constexpr (OFFSET)
                        sums[row] = fma(offset[half], all(own.sums[1 + half][r]), sums[row]);
                }
            } else {
                const Ints products = dot_bytes(bytes, ZERO_POINT, inputs + r, MOST_ROWS, WORDS,
                                                own.corrections[0][r]);
                sums[row] = fma(__builtin_convertvector(products, Floats), scale[0] * row_scale,
                                sums[row]);
                if constexpr (OFFSET) sums[row] = fma(offset[0], all(own.sums[0][r]), sums[row]);
            }
        }
        weights += BITS, words += WORDS * MOST_ROWS, facts++;
        if constexpr (R > MOST_ROWS) more_words += WORDS * MOST_ROWS, more_facts++;
    }
    for (int r = 0; r < R; r++) results[r] = sums[r] * matrix.factor;
}

template <int LOW, int HIGH, bool OFFSET, bool HALVES>
Product product_of(int rows) {
    static constexpr Product by_rows[] = {
        product<LOW, HIGH, OFFSET, HALVES, 1>,  product<LOW, HIGH, OFFSET, HALVES, 2>,
        product<LOW, HIGH, OFFSET, HALVES, 3>,  product<LOW, HIGH, OFFSET, HALVES, 4>,
        product<LOW, HIGH, OFFSET, HALVES, 5>,  product<LOW, HIGH, OFFSET, HALVES, 6>,
        product<LOW, HIGH, OFFSET, HALVES, 7>,  product<LOW, HIGH, OFFSET, HALVES, 8>,
        product<LOW, HIGH, OFFSET, HALVES, 12>, product<LOW, HIGH, OFFSET, HALVES, 16>,
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
                          : product_of<2, 1, false, false>(rows);
        case 40:
            return offset ? product_of<4, 0, true, false>(rows)
                          : product_of<4, 0, false, false>(rows);
        case 41:
            return offset ? product_of<4, 1, true, false>(rows)
                          : product_of<4, 1, false, false>(rows);
        case 42: return product_of<4, 2, false, true>(rows);
        default: return product_of<8, 0, false, false>(rows);
    }
}

}  // namespace draftwood
