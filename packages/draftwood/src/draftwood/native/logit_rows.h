// Distributions that stay rows of logits: the sums of their weights, draws from them, and what
// rejections leave of one.
#pragma once

#include "rows.h"

namespace draftwood {

constexpr int64_t CHUNK = 16 * ROW_BLOCK;  // entries whose largest is found while they are near

constexpr double LOWEST = -86.9;
constexpr float LOWEST_POWER = -126;  // of two; smaller weights are 0

// 2 to the power of values up to 0; 2 ulp.
inline Floats two_to_the(Floats x) {
    const Floats bounded = larger(x, all(LOWEST_POWER));
    const Floats whole = rounded(bounded), rest = bounded - whole;
    Floats power = all(1.535336188319500e-4f);
    for (float c : {1.339887440266574e-3f, 9.618437357674640e-3f, 5.550332471162809e-2f,
                    2.402264791363012e-1f, 6.931472028550421e-1f, 1.0f})
        power = fma(power, rest, all(c));
    return chosen(below(all(LOWEST_POWER), x), scaled(power, whole), Floats{});
}

// A row's distribution. The weight of a value is e^((value - most) * inverse).
struct Softmax {
    const float* logits;
    int64_t size;
    float inverse;  // of the temperature
    float most;     // largest value of the row

    Floats weigh(Floats values) const {
        return two_to_the((values - most) * (inverse * LOG2_OF_E));
    }
    // of sixteen places, all of them in the row
    Floats whole(int64_t from) const { return weigh(load(logits + from)); }
    // of sixteen places; 0 behind the row
    __attribute__((noinline)) Floats some(int64_t from) const {
        Floats values = all(-INFINITY);
        if (from < size)
            std::memcpy(&values, logits + from,
                        std::min<int64_t>(LANES, size - from) * sizeof(float));
        return weigh(values);
    }
    // of one place; 0 for what is never drawn, so the bound is a little higher
    double weight(int64_t place) const {
        const double score = ((double)logits[place] - most) * inverse;
        return score > LOWEST ? std::exp(score) : 0;
    }
    void fill(int64_t from, float* block) const {
        for (int64_t i = 0; i < ROW_BLOCK; i += LANES) store(block + i, some(from + i));
    }
    double block_sum(int64_t from) const {
        Floats even{}, odd{};
        if (from + ROW_BLOCK <= size)
            for (int64_t i = 0; i < ROW_BLOCK; i += 2 * LANES)
                even += whole(from + i), odd += whole(from + i + LANES);
        else
            for (int64_t i = 0; i < ROW_BLOCK; i += LANES) even += some(from + i);
        return sum(even + odd);
    }
};

// Finds the largest value and the sum of each block's weights, in one walk through the row; the
// sum of all. It is not a number where the row holds such, plus infinity, or nothing finite.
inline double sum_weights(Softmax& row, double* blocks) {
    row.most = -INFINITY;
    for (int64_t start = 0; start < row.size; start += CHUNK) {
        const int64_t end = std::min(row.size, start + CHUNK);
        const float here = largest_value(row.logits + start, end - start);
        if (!(here <= row.most)) {
            const double shrunk = std::exp((double)(row.most - here) * row.inverse);
            row.most = here;
            if (!std::isfinite(here)) return NAN;
            for (int64_t block = 0; block < start / ROW_BLOCK; block++) blocks[block] *= shrunk;
        }
        for (int64_t from = start; from < end; from += ROW_BLOCK)
            blocks[from / ROW_BLOCK] = row.most > -INFINITY ? row.block_sum(from) : 0;
    }
    return row.most > -INFINITY ? sum_of(blocks, blocks_of(row.size)) : NAN;
}

// The sum of all weights but those of some places.
inline double sum_without(const Softmax& row, const double* blocks, const int64_t* places,
                          int64_t count) {
    std::vector<double> left(blocks, blocks + blocks_of(row.size));
    for (int64_t i = 0; i < count; i++) {
        const int64_t start = places[i] / ROW_BLOCK * ROW_BLOCK;
        float weights[ROW_BLOCK];
        row.fill(start, weights);
        for (int64_t j = 0; j < count; j++)
            if (places[j] / ROW_BLOCK == start / ROW_BLOCK) weights[places[j] - start] = 0;
        left[start / ROW_BLOCK] = sum_of_block(weights);
    }
    return sum_of(left.data(), left.size());
}

// A row of weights that rejections wear down, over the target's vocabulary.
struct Remainder {
    float* weights;
    int64_t size;

    // [weights - factor * q]+ everywhere; the sum of what is left. `first` stands for the weights
    // where it is not null.
    double subtract(const Softmax* first, const Softmax& q, float factor) const {
        const int64_t shared = std::min(size, q.size);
        double total = 0;
        int64_t block = 0;
        for (; block + ROW_BLOCK <= shared; block += ROW_BLOCK)
            total += first ? block_of<true>(block, *first, q, factor)
                           : block_of<false>(block, q, q, factor);
        for (; block < size; block += LANES) {
            const Floats before = first ? first->some(block) : here(block);
            const Floats rest = larger(before - factor * q.some(block), Floats{});
            keep(block, rest), total += sum(rest);
        }
        return total;
    }

    // The same where place i of q stands for token `tokens[i]`.
    double subtract(const Softmax* first, const Softmax& q, float factor,
                    const int64_t* tokens) const {
        if (first) start(*first);
        float taken[ROW_BLOCK];
        for (int64_t block = 0; block < q.size; block += ROW_BLOCK) {
            q.fill(block, taken);
            for (int64_t i = block; i < std::min(q.size, block + ROW_BLOCK); i++) {
                float& weight = weights[tokens[i]];
                weight = std::max(weight - factor * taken[i - block], 0.0f);
            }
        }
        return sum_of(weights, size);
    }

private:
    void start(const Softmax& row) const {
        int64_t i = 0;
        for (; i + LANES <= std::min(size, row.size); i += LANES) store(weights + i, row.whole(i));
        for (; i < size; i += LANES) keep(i, row.some(i));
    }
    template <bool begins>
    double block_of(int64_t block, const Softmax& first, const Softmax& q, float factor) const {
        Floats sums{};
        for (int64_t i = block; i < block + ROW_BLOCK; i += LANES) {
            const Floats before = begins ? first.whole(i) : load(weights + i);
            const Floats rest = larger(before - factor * q.whole(i), Floats{});
            sums += rest;
            store(weights + i, rest);
        }
        return sum(sums);
    }
    Floats here(int64_t i) const {
        Floats values{};
        std::memcpy(&values, weights + i, std::min<int64_t>(LANES, size - i) * sizeof(float));
        return values;
    }
    void keep(int64_t i, Floats values) const {
        std::memcpy(weights + i, &values, std::min<int64_t>(LANES, size - i) * sizeof(float));
    }
};

// What is left where `factor` times the weights of q are taken away; gives its sum. `first`, unless
// it is null, stands for the weights before. Place i of q stands for token `tokens[i]`, or for token
// i; `spared` tokens lose nothing.
inline double take_away(const Remainder& rest, const Softmax* first, const Softmax& q,
                        const int64_t* tokens, double factor, const int64_t* spared,
                        int64_t count) {
    std::vector<float> kept(count);
    for (int64_t i = 0; i < count; i++)
        kept[i] = first ? (float)first->weight(spared[i]) : rest.weights[spared[i]];
    double total = tokens ? rest.subtract(first, q, (float)factor, tokens)
                          : rest.subtract(first, q, (float)factor);
    for (int64_t i = 0; i < count; i++) {
        total += kept[i] - rest.weights[spared[i]];
        rest.weights[spared[i]] = kept[i];
    }
    return total;
}

}  // namespace draftwood
