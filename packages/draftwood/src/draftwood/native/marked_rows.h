// Additions of low rank to the products of a pass's marked rows: an adapter that leaves the bits of
// all other rows as they are (gated LoRA: Samragh et al. 2025, arXiv:2507.11851).
//
// What a row adds depends on the row alone. Its input times `down` is found before the product,
// rank by rank, and `up` times that is added to the product tile by tile.
#pragma once

#include "network.h"

namespace draftwood {

// Additions for the marked rows of one pass, kept from pass to pass.
class Marks {
public:
    void begin(const MarkedRows* given, int rows, int layers, int hidden) {
        marked = given && given->count ? given : nullptr;
        if (!marked) return;
        width = hidden, most_ranks = 0;
        numbers.assign(rows, -1);
        for (int64_t i = 0; i < marked->count; i++) numbers[marked->rows[i]] = (int)i;
        for (int layer = 0; layer < layers; layer++)
            for (const LowRank& each : marked->layers[layer].matrices)
                most_ranks = std::max(most_ranks, each.rank);
        inputs.resize(marked->count * width);
        narrowed.resize(marked->count * LAYER_MATRICES * most_ranks);
    }

    // The number of a row among the marked ones; -1 for others.
    int of(int row) const { return marked ? numbers[row] : -1; }

    const float* vector(int mark) const { return marked->vectors + (size_t)mark * width; }
    // A marked row as products with the next matrices read it, before it is encoded.
    float* input(int mark) { return &inputs[(size_t)mark * width]; }

    // Ranks of some matrices of a layer.
    int ranks(int layer, LayerMatrix first, LayerMatrix last) const {
        int count = 0;
        for (int i = first; marked && i <= last; i++) count += matrix(layer, i).rank;
        return count;
    }

    // Multiply the marked rows, input_of(row, mark), with ranks [from, to) of `ranks`.
    template <class Inputs>
    void narrow(int layer, LayerMatrix first, LayerMatrix last, int from, int to,
                Inputs input_of) {
        int before = 0;
        for (int i = first; i <= last; before += matrix(layer, i).rank, i++) {
            const LowRank& own = matrix(layer, i);
            for (int rank = std::max(from - before, 0); rank < std::min(to - before, own.rank);
                 rank++)
                for (int mark = 0; mark < (int)marked->count; mark += AT_ONCE)
                    narrow_some(own, i, rank, mark, input_of);
        }
    }

    // A tile of a product with what is added for this row.
    Floats added(int layer, LayerMatrix which, int row, int tile, Floats values) const {
        const int mark = of(row);
        if (mark < 0) return values;
        const LowRank& own = matrix(layer, which);
        const bfloat16* up = own.up + (size_t)tile * own.rank * LANES;
        const float* narrow = &narrowed[place(mark, which)];
        Floats others[3]{};
        int rank = 0;
        for (; rank + 4 <= own.rank; rank += 4, up += 4 * LANES) {
            values = fma(all(narrow[rank]), load(up), values);
            for (int i = 0; i < 3; i++)
                others[i] = fma(all(narrow[rank + 1 + i]), load(up + (1 + i) * LANES), others[i]);
        }
        for (; rank < own.rank; rank++, up += LANES)
            values = fma(all(narrow[rank]), load(up), values);
        return values + (others[0] + others[1] + others[2]);
    }

private:
    static constexpr int AT_ONCE = 4;  // rows whose sums do not wait for each other

    const MarkedRows* marked = nullptr;
    int width = 0, most_ranks = 0;
    std::vector<int> numbers;             // by row
    std::vector<float> inputs, narrowed;  // [marks][hidden], [marks][matrices][most_ranks]

    const LowRank& matrix(int layer, int which) const {
        return marked->layers[layer].matrices[which];
    }
    size_t place(int mark, int which) const {
        return ((size_t)mark * LAYER_MATRICES + which) * most_ranks;
    }

    // Of the marked rows from one on; behind the last it is computed again.
    template <class Inputs>
    void narrow_some(const LowRank& own, int which, int rank, int mark, Inputs input_of) {
        const int rows = std::min((int)marked->count - mark, AT_ONCE);
        const float* values[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = mark + std::min(i, rows - 1);
            values[i] = input_of((int)marked->rows[at], at);
        }
        float totals[AT_ONCE];
        dots(own.down + (size_t)rank * own.inputs, values, own.inputs, totals);
        for (int i = 0; i < rows; i++) narrowed[place(mark + i, which) + rank] = totals[i];
    }

    static void dots(const bfloat16* weights, const float* const (&values)[AT_ONCE], int count,
                     float (&totals)[AT_ONCE]) {
        Floats products[AT_ONCE]{};
        int from = 0;
        for (; from + LANES <= count; from += LANES) {
            const Floats own = load(weights + from);
            for (int i = 0; i < AT_ONCE; i++)
                products[i] = fma(own, load(values[i] + from), products[i]);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            totals[i] = sum(products[i]);
            for (int at = from; at < count; at++) totals[i] += to_float(weights[at]) * values[i][at];
        }
    }
};

}  // namespace draftwood
