// What rows.py calls.
#include "filters.h"
#include "workshop.h"

extern "C" {

// places [rows count], and shares [rows count] unless they are null
void draftwood_topk(const float* values, int64_t rows, int64_t stride, int64_t size, int32_t count,
                    int64_t* places, float temperature, float* shares, int32_t threads) {
    draftwood::for_each(rows, threads, [&](int64_t row) {
        const float* own = values + row * stride;
        draftwood::topk_of(own, size, count, places + row * count);
        if (shares)
            draftwood::shares_of(own, size, places + row * count, count, temperature,
                                 shares + row * count);
    });
}

void draftwood_softmax(const float* values, int64_t rows, int64_t stride, int64_t size,
                       float temperature, float* probs, int32_t threads) {
    draftwood::for_each(rows, threads, [&](int64_t row) {
        draftwood::soften_row(values + row * stride, size, temperature, probs + row * size);
    });
}

// shares and places [rows count]
void draftwood_sample_inverse_cdf(const float* weights, int64_t rows, int64_t stride, int64_t size,
                                  const double* shares, int32_t count, int32_t distinct,
                                  int64_t* places, int32_t threads) {
    draftwood::for_each(rows, threads, [&](int64_t row) {
        draftwood::sample_inverse_cdf(weights + row * stride, size, shares + row * count, count,
                                      distinct, places + row * count);
    });
}

double draftwood_overlap(const float* p, const float* q, int64_t size, float scale) {
    return draftwood::overlap(p, q, size, scale);
}

// A row of logits as filters leave it behind a text that ends with the root.
void draftwood_filter(const draftwood::Filters* filters, const int64_t* text, int64_t count,
                      int64_t prompt, float temperature, const float* row, int64_t size,
                      float* result) {
    draftwood::FilteredRows(*filters, {text, count, prompt}, temperature).write(row, size, {}, result);
}

int64_t draftwood_gumbel_argmax(const float* weights, int64_t size, uint32_t first,
                                uint32_t second) {
    return draftwood::gumbel_argmax(weights, size, {first, second});
}

int64_t draftwood_gumbel_argmax_of_logits(const float* logits, int64_t size, float temperature,
                                          uint32_t first, uint32_t second) {
    return draftwood::gumbel_argmax_of_logits(logits, size, temperature, {first, second});
}

void draftwood_exponential_noise(const int64_t* tokens, int64_t count, uint32_t first,
                                 uint32_t second, float* times) {
    using namespace draftwood;
    for (int64_t from = 0; from < count; from += LANES) {
        Words some{};
        for (int64_t i = from; i < std::min(count, from + LANES); i++)
            some[i - from] = (uint32_t)tokens[i];
        Floats found = exponential_noise(some, {first, second});
        for (int64_t i = from; i < std::min(count, from + LANES); i++) times[i] = found[i - from];
    }
}
}
