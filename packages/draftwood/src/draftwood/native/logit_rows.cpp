// What logit_rows.py calls.
#include "logit_rows.h"

#include "workshop.h"

namespace {

// What a call of sum_weights leaves of each row: the sum of all weights, the largest value, and
// the sums of blocks.
constexpr int64_t TOTAL = 0, MOST = 1, BLOCKS = 2;

draftwood::Softmax softmax_of(const float* logits, int64_t size, float temperature,
                              const double* sums) {
    return {logits, size, 1 / temperature, (float)sums[MOST]};
}

}  // namespace

extern "C" {

// sums [rows 2 + blocks]; gives the number of rows that are no distribution, whose total is not a
// number
int64_t draftwood_sum_weights(const float* logits, int64_t rows, int64_t stride, int64_t size,
                              float temperature, double* sums, int32_t threads) {
    const int64_t wide = BLOCKS + draftwood::blocks_of(size);
    draftwood::for_each(rows, threads, [&](int64_t row) {
        double* own = sums + row * wide;
        draftwood::Softmax softmax{logits + row * stride, size, 1 / temperature, 0};
        own[TOTAL] = draftwood::sum_weights(softmax, own + BLOCKS);
        own[MOST] = softmax.most;
    });
    int64_t odd = 0;
    for (int64_t row = 0; row < rows; row++) odd += std::isnan(sums[row * wide + TOTAL]);
    return odd;
}

// Draws by inverting the cumulative distribution; shares, places and chances [rows count]. Without
// shares the likeliest are taken, in falling order.
void draftwood_draw_children(const float* logits, int64_t rows, int64_t stride, int64_t size,
                             float temperature, const double* sums, const double* shares,
                             int32_t count, int32_t distinct, int64_t* places, double* chances,
                             int32_t threads) {
    const int64_t wide = BLOCKS + draftwood::blocks_of(size);
    draftwood::for_each(rows, threads, [&](int64_t row) {
        const double* own = sums + row * wide;
        const draftwood::Softmax softmax =
            softmax_of(logits + row * stride, size, temperature, own);
        int64_t* drawn = places + row * count;
        if (shares) {
            std::vector<double> blocks(own + BLOCKS, own + wide);
            draftwood::sample_blocks(
                blocks, size, shares + row * count, count, distinct, drawn,
                [&](int64_t start, float* left) { softmax.fill(start, left); });
        } else draftwood::topk_of(softmax.logits, size, count, drawn);
        for (int64_t i = 0; i < count; i++)
            chances[row * count + i] = softmax.weight(drawn[i]) / own[TOTAL];
    });
}

// Sum of a row's weights but those of some places.
double draftwood_sum_without(const float* logits, int64_t size, float temperature,
                             const double* sums, const int64_t* places, int64_t count) {
    return draftwood::sum_without(softmax_of(logits, size, temperature, sums), sums + BLOCKS,
                                  places, count);
}

// As take_away says. `first`, unless it is null, is a row of logits.
double draftwood_take_away(float* weights, int64_t size, const float* first, int64_t first_size,
                           float first_temperature, const double* first_sums, const float* q,
                           int64_t q_size, float q_temperature, const double* q_sums,
                           const int64_t* tokens, double factor, const int64_t* spared,
                           int64_t count) {
    const draftwood::Remainder rest{weights, size};
    const draftwood::Softmax taken = softmax_of(q, q_size, q_temperature, q_sums);
    draftwood::Softmax begun{};
    if (first) begun = softmax_of(first, first_size, first_temperature, first_sums);
    return draftwood::take_away(rest, first ? &begun : nullptr, taken, tokens, factor, spared,
                                count);
}
}
