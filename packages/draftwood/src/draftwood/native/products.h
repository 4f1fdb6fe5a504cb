// Products of a few rows with matrices (matrices.h). What makes them is in three files, which are
// compiled side by side: products.cpp, products_of_bytes.cpp and products_by_unit.cpp.
#pragma once

#include "matrices.h"

namespace draftwood {

// Products of rows [row, row + rows) with tiles [tile, tile + tiles): of each tile and row sixteen
// results [tiles][rows].
struct SomeProducts {
    int row, rows, tile, tiles;
    const Floats* results;
};

// Hands products to take(row, tile, sixteen results), so that what makes them is compiled once,
// whoever takes them.
class Taker {
public:
    template <class Take>
    explicit Taker(Take& take)
        : take(&take), hand([](void* take, const SomeProducts& some) {
              const Floats* result = some.results;
              for (int tile = some.tile; tile < some.tile + some.tiles; tile++)
                  for (int row = some.row; row < some.row + some.rows; row++)
                      (*(Take*)take)(row, tile, *result++);
          }) {}

    void operator()(const SomeProducts& some) const { hand(take, some); }

private:
    void* const take;
    void (*const hand)(void* take, const SomeProducts& some);
};

// Products of the first rows of a block with one tile, or with a few where the format takes several
// at a time: results [tiles][rows].
using Product = void (*)(const Matrix& matrix, const Rows& rows, int block, int tile,
                         Floats* results);

// That of so many rows, at most 16, with a tile of codes, in 8-bit integers. Rows behind the first
// block lie in the next; up to three more than are wanted are computed.
Product product_of_bytes(const Matrix& matrix, int rows);

// Products of rows [0, count) with tiles [first, last); those by the unit of amx.h give the same
// bits.
void products_by_vectors(const Matrix& matrix, const Rows& rows, int count, int first, int last,
                         const Taker& take);
void products_by_unit(const Matrix& matrix, const Rows& rows, int count, int first, int last,
                      const Taker& take);

inline void add_bias(const Matrix& matrix, int tile, Floats& result) {
    for (int lane = 0; lane < LANES && tile * LANES + lane < matrix.outputs; lane++)
        result[lane] += matrix.bias[tile * LANES + lane];
}

inline bool takes_unit(const Matrix& matrix, int rows) {
    return matrix.encoding == BYTES &&
           takes_unit(rows, has_half_groups(info_of(matrix.format).scales));
}

// Hands the products of rows [0, count) with tiles [first, last) to take(row, tile, sixteen
// results).
template <class Take>
inline void products(const Matrix& matrix, const Rows& rows, int count, int first, int last,
                     Take take) {
    if (first >= last) return;
    (rows.for_unit && takes_unit(matrix, count) ? products_by_unit
                                                : products_by_vectors)(matrix, rows, count, first,
                                                                       last, Taker(take));
}

}  // namespace draftwood
