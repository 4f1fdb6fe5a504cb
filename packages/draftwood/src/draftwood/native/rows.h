// Searches through rows of a vocabulary.
#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace draftwood {

inline bool any_above(Floats values, float bar) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)values, _mm512_set1_ps(bar), _CMP_GT_OQ);
#else
    return any(below(all(bar), values));
#endif
}

inline bool any_not_below(Floats values, float bar) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)values, _mm512_set1_ps(bar), _CMP_NLE_UQ);
#else
    return any(below(all(bar), values) | ~are_numbers(values));
#endif
}

// Whether a goes before b among the largest. What is no number goes before all numbers, so that it
// is not overlooked.
inline bool before(float a, float b) { return a > b || (a != a && b == b); }

// The `count` largest of a row, largest first; of equal ones the first.
inline void topk_of(const float* row, int64_t size, int count, int64_t* places) {
    int found = 0;
    auto consider = [&](int64_t place) {
        if (found == count && !before(row[place], row[places[count - 1]])) return;
        int at = found < count ? found++ : count - 1;
        for (; at > 0 && before(row[place], row[places[at - 1]]); at--) places[at] = places[at - 1];
        places[at] = place;
    };
    int64_t place = 0;
    for (; place < size && found < count; place++) consider(place);
    for (; place + LANES <= size; place += LANES)
        if (any_not_below(load(row + place), row[places[count - 1]]))
            for (int lane = 0; lane < LANES; lane++) consider(place + lane);
    for (; place < size; place++) consider(place);
}

// Not a number where one of them is none.
inline float largest_value(const float* row, int64_t size) {
    constexpr int AT_ONCE = 4;  // comparisons that do not wait for each other
    Floats most[AT_ONCE] = {all(row[0]), all(row[0]), all(row[0]), all(row[0])};
    Ints odd{};  // lanes in which something is no number
    int64_t i = 0;
    for (; i + AT_ONCE * LANES <= size; i += AT_ONCE * LANES)
        for (int part = 0; part < AT_ONCE; part++) {
            const Floats values = load(row + i + part * LANES);
            most[part] = larger(most[part], values), odd |= values != values;
        }
    float found = maximum(larger(larger(most[0], most[1]), larger(most[2], most[3])));
    for (; i < size; i++)
        if (before(row[i], found)) found = row[i];
    return sum(odd) ? NAN : found;
}

// Weights of logits, of which `most` is the largest. One of minus infinity is never drawn.
inline Floats scaled_exp(Floats logits, float most, float inverse_temperature) {
    const Floats score = (logits - all(most)) * all(inverse_temperature);
    return chosen(below(all(-87.0f), score), exponential(score), Floats{});
}

// The same of the last logits of a row, fewer than a vector; the other lanes are 0.
inline Floats scaled_exp_of(const float* row, int64_t count, float most, float inverse_temperature) {
    Floats logits = all(-INFINITY);
    std::memcpy(&logits, row, sizeof(float) * count);
    return scaled_exp(logits, most, inverse_temperature);
}

// Probabilities from logits: e^(value / temperature), divided by the sum over the row; no numbers
// where there are none.
inline void soften_row(const float* row, int64_t size, float temperature, float* probs) {
    const int64_t whole = size / LANES * LANES;
    const float inverse = 1 / temperature, most = largest_value(row, size);
    if (!std::isfinite(most)) return std::fill(probs, probs + size, NAN);
    Floats sums{};
    for (int64_t i = 0; i < whole; i += LANES) {
        Floats power = scaled_exp(load(row + i), most, inverse);
        store(probs + i, power);
        sums += power;
    }
    if (whole < size) {  // as the others, so that equal logits have equal probabilities
        const Floats power = scaled_exp_of(row + whole, size - whole, most, inverse);
        std::memcpy(probs + whole, &power, sizeof(float) * (size - whole));
        sums += power;
    }
    const float share = 1 / sum(sums);
    for (int64_t i = 0; i < whole; i += LANES) store(probs + i, load(probs + i) * share);
    for (int64_t i = whole; i < size; i++) probs[i] *= share;
}

// In 64 bits, so that rare tokens keep their weight.
template <typename Number>
inline double sum_of(const Number* weights, int64_t size) {
    double sums[LANES]{};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        for (int lane = 0; lane < LANES; lane++) sums[lane] += weights[i + lane];
    for (; i < size; i++) sums[0] += weights[i];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; lane++) sums[lane] += sums[lane + width];
    return sums[0];
}

// The first place with which the sum exceeds `goal`, or the last with any weight where rounding
// carried the goal past the end. `goal` becomes what is left of it before that place.
template <typename Number>
inline int64_t place_of(const Number* weights, int64_t size, double& goal) {
    int64_t place = 0;
    double before = 0, sum = 0;
    for (int64_t i = 0; i < size && sum <= goal; i++)
        if (weights[i] > 0) place = i, before = sum, sum += weights[i];
    goal -= before;
    return place;
}

constexpr int64_t ROW_BLOCK = 256;  // entries of a row that are summed up together

inline double sum_of_block(const float* weights) {
    Doubles sums{};
    for (int i = 0; i < ROW_BLOCK; i += LANES)
        sums += __builtin_convertvector(load(weights + i), Doubles);
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

// For each of `count` shares (0 to 1) the place at which the weights up to it first exceed this
// share of their sum. Where drawn tokens are `distinct`, a place has no weight for those after it.
// Where no weight is left the last place fills up. `blocks` holds the sum of each block of the row,
// up to rounding; `fill` writes the weights of a block, with zeros behind the row.
template <typename Fill>
void sample_blocks(std::vector<double>& blocks, int64_t size, const double* shares, int count,
                   bool distinct, int64_t* places, Fill fill) {
    for (int draw = 0; draw < count; draw++) {
        const double total = sum_of(blocks.data(), blocks.size());
        places[draw] = size - 1;
        if (!(total > 0)) continue;
        double goal = shares[draw] * total;
        const int64_t block = place_of(blocks.data(), blocks.size(), goal), start = block * ROW_BLOCK;
        float left[ROW_BLOCK]{};  // of the block, without what was drawn
        fill(start, left);
        for (int i = 0; distinct && i < draw; i++)
            if (places[i] / ROW_BLOCK == block) left[places[i] - start] = 0;
        goal *= sum_of_block(left) / blocks[block];  // so that no token is behind the sum's end
        const int64_t place = place_of(left, ROW_BLOCK, goal);
        places[draw] = start + place;
        left[place] = 0;
        if (distinct) blocks[block] = sum_of_block(left);
    }
}

inline int64_t blocks_of(int64_t size) { return (size + ROW_BLOCK - 1) / ROW_BLOCK; }

// The same for weights that are there.
inline void sample_inverse_cdf(const float* weights, int64_t size, const double* shares, int count,
                               bool distinct, int64_t* places) {
    std::vector<double> blocks(blocks_of(size));
    for (size_t block = 0; block < blocks.size(); block++)
        blocks[block] =
            sum_of(weights + block * ROW_BLOCK, std::min(ROW_BLOCK, size - (int64_t)block * ROW_BLOCK));
    sample_blocks(blocks, size, shares, count, distinct, places, [&](int64_t start, float* left) {
        std::copy(weights + start, weights + std::min(size, start + ROW_BLOCK), left);
    });
}

// Sum of the smaller of p * scale and q, in 64 bits.
inline double overlap(const float* p, const float* q, int64_t size, float scale) {
    Doubles sums{};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        sums += __builtin_convertvector(smaller(load(p + i) * scale, load(q + i)), Doubles);
    double total = 0;
    for (; i < size; i++) total += std::min(p[i] * scale, q[i]);
    for (int lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

// The share of each of these places, the largest first, in the sum of e^(value / temperature) over
// a row.
inline void shares_of(const float* row, int64_t size, const int64_t* places, int count,
                      float temperature, float* shares) {
    const float most = row[places[0]], inverse = 1 / temperature;
    Floats sums{};
    float total = 0;
    int64_t place = 0;
    for (; place + LANES <= size; place += LANES)
        sums += exponential((load(row + place) - most) * inverse);
    for (; place < size; place++) total += std::exp((row[place] - most) * inverse);
    total += sum(sums);
    for (int i = 0; i < count; i++) shares[i] = std::exp((row[places[i]] - most) * inverse) / total;
}

}  // namespace draftwood
