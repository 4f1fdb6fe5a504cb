// Products by vectors: their order, and those in floats.
#include "products.h"

namespace draftwood {

const Tables TABLES;

namespace {

// Products of R rows with one tile of codes, in floats: nothing of the rows is rounded.
template <int R>
void product_of_codes(const Matrix& matrix, const Rows& rows, int block, int tile,
                             Floats* results) {
    TileReader reader(matrix, tile);
    const float* words = (const float*)rows.words_of(FLOATS, block);
    for (int r = 0; r < R; r++) results[r] = Floats{};
    for (int group = 0, count = groups(matrix); group < count; group++) {
        Floats weights[GROUP];
        reader.next(weights);
        for (int input = 0; input < GROUP; input++, words += MOST_ROWS)
            for (int r = 0; r < R; r++) results[r] = fma(weights[input], all(words[r]), results[r]);
    }
}

// Products of R rows of a block, from the first on, with T tiles in floats; results [tiles][of].
template <int FORMAT, int R, int T>
DRAFTWOOD_INLINE void add_up_floats(const Matrix& matrix, const Rows& rows, int block, int tile,
                                    int first, int of, Floats* results) {
    constexpr bool PAIRS = FORMAT == BFLOAT16;  // a step takes two inputs
    using Vector = std::conditional_t<FORMAT == FLOAT16, Halves, Floats>;
    const int steps = groups(matrix) * GROUP / (PAIRS ? 2 : 1);
    const Vector* weights = (const Vector*)matrix.weights + (size_t)tile * steps;
    const uint32_t* words = rows.words_of(PAIRS ? HALVES : FLOATS, block) + first;
    Part sums[T][R][PARTS_OF_VECTOR]{};
    for (int step = 0; step < steps; step++, words += MOST_ROWS)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            const Vector* stored = weights + (size_t)t * steps + step;
            __builtin_prefetch(stored + AHEAD * 4);
            Part own[PARTS_OF_VECTOR];
            load_parts(stored, own);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int part = 0; part < PARTS_OF_VECTOR; part++) {
                    Part& sum = sums[t][r][part];
                    if constexpr (PAIRS) sum = dot_halves(sum, own[part], words[r]);
                    else sum = fma_parts(own[part], all_of_part(((const float*)words)[r]), sum);
                }
        }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            std::memcpy(&results[t * of + first + r], sums[t][r], sizeof(Floats));
}

// Rows and tiles whose sums registers hold.
constexpr int FLOAT_ROWS = PARTS_OF_VECTOR == 1 ? MOST_ROWS : MOST_ROWS / 2;
constexpr int float_tiles(int rows) {
    if (PARTS_OF_VECTOR == 1) return rows <= 4 ? 4 : 2;
    return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}

template <int FORMAT, int R, int T>
void product_of_floats(const Matrix& matrix, const Rows& rows, int block, int tile,
                       Floats* results) {
    add_up_floats<FORMAT, std::min(R, FLOAT_ROWS), T>(matrix, rows, block, tile, 0, R, results);
    if constexpr (R > FLOAT_ROWS)
        add_up_floats<FORMAT, R - FLOAT_ROWS, T>(matrix, rows, block, tile, FLOAT_ROWS, R, results);
}

// How so many rows are multiplied: with one tile, and with a few at a time.
struct Products {
    Product one, several;
    int tiles;  // of several
};

template <int FORMAT, int R>
Products in_floats() {
    constexpr int T = float_tiles(R);
    return {product_of_floats<FORMAT, R, 1>, product_of_floats<FORMAT, R, T>, T};
}

bool takes_bytes(const Matrix& matrix) {
    return is_quantised(matrix.format) && matrix.encoding == BYTES;
}

template <int R>
Products products_of(const Matrix& matrix) {
    switch (matrix.format) {
        case FLOAT32: return in_floats<FLOAT32, R>();
        case FLOAT16: return in_floats<FLOAT16, R>();
        case BFLOAT16: return in_floats<BFLOAT16, R>();
    }
    return {product_of_codes<R>, product_of_codes<R>, 1};
}

Products products_of(const Matrix& matrix, int rows) {
    if (takes_bytes(matrix)) {
        const Product one = product_of_bytes(matrix, rows);
        return {one, one, 1};
    }
    switch (rows) {
        case 1: return products_of<1>(matrix);
        case 2: return products_of<2>(matrix);
        case 3: return products_of<3>(matrix);
        case 4: return products_of<4>(matrix);
        case 5: return products_of<5>(matrix);
        case 6: return products_of<6>(matrix);
        case 7: return products_of<7>(matrix);
        default: return products_of<MOST_ROWS>(matrix);
    }
}

// Of one block of rows, or of two that share what is unpacked.
void products_of_block(const Matrix& matrix, const Rows& rows, int block, int count, int first,
                       int last, const Taker& take) {
    const Products multiply = products_of(matrix, count);
    Floats results[2 * MOST_ROWS];
    for (int tiles; first < last; first += tiles) {
        const bool is_several = last - first >= multiply.tiles;
        tiles = is_several ? multiply.tiles : 1;
        (is_several ? multiply.several : multiply.one)(matrix, rows, block, first, results);
        for (int i = 0; matrix.bias && i < tiles * count; i++)
            add_bias(matrix, first + i / count, results[i]);
        take({block * MOST_ROWS, count, first, tiles, results});
    }
}

}  // namespace

void products_by_vectors(const Matrix& matrix, const Rows& rows, int count, int first, int last,
                         const Taker& take) {
    // one or two rows more than a block are faster by themselves
    const bool are_shared = takes_bytes(matrix);
    const auto at_once = [&](int left) {
        return are_shared && left > MOST_ROWS + 2 ? 2 * MOST_ROWS : MOST_ROWS;
    };
    // few tiles stay cached while many rows pass by
    const int stretch = count > at_once(count) ? 4 : last - first;
    for (int tile = first; tile < last; tile += stretch)
        for (int row = 0, rows_here; row < count; row += rows_here) {
            rows_here = std::min(at_once(count - row), count - row);
            products_of_block(matrix, rows, row / MOST_ROWS, rows_here, tile,
                              std::min(last, tile + stretch), take);
        }
}

}  // namespace draftwood
