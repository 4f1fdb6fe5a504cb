// Products by vectors, in 8-bit integers.
#include "products.h"

namespace draftwood {

namespace {

// Products of R rows with one tile of codes.
template <int LOW, int HIGH, bool OFFSET, int R>
void product(const Matrix& matrix, const Rows& rows, int block,
                                                int tile, Floats* results) {
    constexpr int BITS = LOW + HIGH;
    constexpr bool HALF_GROUPS = LOW == 2 || HIGH == 2;
    const FormatInfo& info = info_of(matrix.format);
    const Unpacker<LOW, HIGH> unpack(matrix.format);
    constexpr bool ZERO_POINT = !OFFSET;  // no format has both
    const Ints* weights = planes(matrix, tile);
    ScaleReader<kinds_of_codes(LOW, HIGH, OFFSET)> reader(info.scales, scales(matrix, tile));
    const uint32_t* words = rows.words_of(BYTES, block);
    const GroupFacts* facts = rows.facts_of(block);
    Floats sums[R];
    for (int r = 0; r < R; r++) sums[r] = Floats{};
    for (int group = 0, count = groups(matrix); group < count; group++) {
        Ints bytes[WORDS];
        unpack(weights, bytes);
        for (int i = 0; i < BITS; i++) __builtin_prefetch(weights + AHEAD * BITS + i);
        reader.prefetch(AHEAD);
        Floats scale[2], offset[2];
        reader.next(scale, offset);
        for (int r = 0; r < R; r++) {
            const Floats row_scale = all(facts->scales[r]);
            if constexpr (HALF_GROUPS) {
                for (int half = 0; half < 2; half++) {
                    constexpr int COUNT = WORDS / 2;
                    const Ints products = dot_bytes(bytes + half * COUNT, ZERO_POINT,
                                                    words + half * COUNT * MOST_ROWS + r, MOST_ROWS,
                                                    COUNT, facts->corrections[1 + half][r]);
                    sums[r] = fma(__builtin_convertvector(products, Floats),
                                  scale[half] * row_scale, sums[r]);
                    if constexpr (OFFSET)
                        sums[r] = fma(offset[half], all(facts->sums[1 + half][r]), sums[r]);
                }
            } else {
                const Ints products = dot_bytes(bytes, ZERO_POINT, words + r, MOST_ROWS, WORDS,
                                                facts->corrections[0][r]);
                sums[r] =
                    fma(__builtin_convertvector(products, Floats), scale[0] * row_scale, sums[r]);
                if constexpr (OFFSET) sums[r] = fma(offset[0], all(facts->sums[0][r]), sums[r]);
            }
        }
        weights += BITS, words += WORDS * MOST_ROWS, facts++;
    }
    for (int r = 0; r < R; r++) results[r] = sums[r] * matrix.factor;
}

template <int LOW, int HIGH, bool OFFSET>
Product product_of(int rows) {
    static constexpr Product by_rows[MOST_ROWS] = {
        product<LOW, HIGH, OFFSET, 1>, product<LOW, HIGH, OFFSET, 2>,
        product<LOW, HIGH, OFFSET, 3>, product<LOW, HIGH, OFFSET, 4>,
        product<LOW, HIGH, OFFSET, 5>, product<LOW, HIGH, OFFSET, 6>,
        product<LOW, HIGH, OFFSET, 7>, product<LOW, HIGH, OFFSET, 8>,
    };
    return by_rows[rows - 1];
}

}  // namespace

Product product_of_bytes(const Matrix& matrix, int rows) {
    const FormatInfo& info = info_of(matrix.format);
    const bool offset = has_offsets(info.scales);
    switch (info.low * 10 + info.high) {
        case 20: return product_of<2, 0, true>(rows);
        case 21: return product_of<2, 1, false>(rows);
        case 40: return offset ? product_of<4, 0, true>(rows) : product_of<4, 0, false>(rows);
        case 41: return offset ? product_of<4, 1, true>(rows) : product_of<4, 1, false>(rows);
        case 42: return product_of<4, 2, false>(rows);
        default: return product_of<8, 0, false>(rows);
    }
}

}  // namespace draftwood
