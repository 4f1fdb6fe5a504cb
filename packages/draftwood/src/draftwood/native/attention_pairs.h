// Attention in bfloat16 where the CPU multiplies pairs at once.
//
// All rows of a group read the tokens that they share together. Keys are turned so that 16 places
// lie side by side; queries are rounded as keys are.
#pragma once

#include "attention.h"

namespace draftwood {

// Averages over one block, of rounded queries; only where there are pairs.
void attend_block_in_pairs(const Visibility& visibility, const Together& some,
                           const KeysAndValues<bfloat16>& cache, const Queries<uint32_t>& query_of,
                           Bench& bench);

#if defined(__AVX512BF16__)

constexpr int TWICE = 2 * LANES;

constexpr bool HAS_PAIRS = true;
inline bool fits_pairs(int dim) { return dim % (2 * TWICE) == 0; }

// A query [dim], rounded.
inline void round_query(const float* query, int dim, bfloat16* rounded) {
    for (int i = 0; i < dim; i += LANES) store(rounded + i, load(query + i));
}

// The sums in order, divided by the sum of the weights.
inline void finish_pairs(const Average& average, float* results) {
    for (int from = 0; from < average.dim; from += TWICE) {
        const Floats low = load(average.sums + from) / average.total(),
                     high = load(average.sums + from + LANES) / average.total();
        store(results + from, __builtin_shufflevector(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5,
                                                      6, 7, 20, 21, 22, 23));
        store(results + from + LANES, __builtin_shufflevector(low, high, 8, 9, 10, 11, 24, 25, 26,
                                                              27, 12, 13, 14, 15, 28, 29, 30, 31));
    }
}

#else

constexpr bool HAS_PAIRS = false;
inline bool fits_pairs(int) { return false; }
inline void round_query(const float*, int, bfloat16*) {}
inline void finish_pairs(const Average&, float*) {}

#endif

}  // namespace draftwood
