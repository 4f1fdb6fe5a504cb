// Medusa's and Hydra's heads: each drafts one of the next places from one state of the target, and
// from tokens behind it (heads/medusa.py).
#pragma once

#include "rows_of_states.h"

namespace draftwood {

struct MedusaHeads {
    const Decoder* decoder;  // its vocabulary is the draft vocabulary; it has no layers
    const int32_t* reads;    // [levels]: how many tokens the head of a level reads
    int64_t target_vocabulary;
    Norm token_norm;            // of these
    const Matrix* projections;  // [levels]: [hidden][(1 + tokens) * hidden], where it reads any
    const Matrix* blocks;       // [levels]: [hidden][hidden]
};

// The states [count][hidden] of some rows of one level; `tokens` [count][most] are what they read.
inline void medusa_states(const MedusaHeads& heads, int level, const float* state,
                          const int64_t* tokens, int64_t most, int count, float* states,
                          int threads) {
    const Decoder& decoder = *heads.decoder;
    const int width = decoder.hidden, reads = heads.reads[level];
    Rows joined, narrow;
    joined.reserve(decoder.encodings, reads ? count : 0, (1 + reads) * width);
    for_each(count, threads, [&](int64_t row) {
        float* all = reads ? row_of_floats((1 + reads) * width) : states + row * width;
        std::copy(state, state + width, all);
        for (int i = 0; i < reads; i++) {
            embed(decoder, tokens[row * most + i], all + (1 + i) * width);
            normed(decoder, all + (1 + i) * width, width, heads.token_norm, false,
                   all + (1 + i) * width);
        }
        if (reads) encode(joined, (int)row, all, (1 + reads) * width);
    });
    if (reads)
        multiply_together(heads.projections[level], joined, count, threads,
                          [&](int row, int tile, Floats values) {
                              put_tile(states + (size_t)row * width, tile, width, values);
                          });
    narrow.reserve(decoder.encodings, count, width);
    for (int row = 0; row < count; row++) encode(narrow, row, states + (size_t)row * width, width);
    multiply_together(heads.blocks[level], narrow, count, threads,
                      [&](int row, int tile, Floats values) {
                          add_tile(states + (size_t)row * width, tile, width,
                                   decoder.gating.gate(values));
                      });
}

// Logits [rows][vocabulary] of rows whose levels ascend, from the first state that is given; no
// numbers where it holds none. Returns the first row with a token that is none of the target's, and
// then nothing was done; else -1.
inline int32_t medusa_logits(const MedusaHeads& heads, const FusionInput& given,
                             const int32_t* levels, int64_t rows, const int64_t* tokens,
                             int64_t most, float* logits, int threads) {
    const Decoder& decoder = *heads.decoder;
    const int width = decoder.hidden;
    for (int64_t row = 0; row < rows; row++)
        for (int i = 0; i < heads.reads[levels[row]]; i++)
            if (const int64_t token = tokens[row * most + i];
                token < 0 || token >= heads.target_vocabulary)
                return (int32_t)row;
    std::vector<float> state(width), states(rows * width);
    read_state(given, 0, 0, width, state.data());
    if (!are_finite(state.data(), width)) {
        std::fill(logits, logits + rows * decoder.vocabulary, NAN);
        return -1;
    }
    for (int64_t first = 0, next; first < rows; first = next) {
        next = std::find_if(levels + first, levels + rows,
                            [&](int32_t level) { return level != levels[first]; }) -
               levels;
        medusa_states(heads, levels[first], state.data(), tokens + first * most, most,
                      (int)(next - first), &states[first * width], threads);
    }
    Rows encoded;
    encoded.reserve(decoder.encodings, (int)rows, width);
    for (int64_t row = 0; row < rows; row++) encode(encoded, (int)row, &states[row * width], width);
    multiply_together(decoder.lm_head, encoded, (int)rows, threads,
                      [&](int row, int tile, Floats values) {
                          put_tile(logits + (int64_t)row * decoder.vocabulary, tile,
                                   decoder.vocabulary, values);
                      });
    return -1;
}

}  // namespace draftwood
