// A CTC head at work on one sequence (heads/ctc.py).
//
// Row t of the context holds the target's state at place t and, where the head reads it, the token
// behind it. The context gives keys and values alone; the frames stand behind it as rows that see
// it and each other, and leave no trace.
#pragma once

#include <atomic>

#include "rows.h"
#include "rows_of_states.h"

namespace draftwood {

struct FrameHead {
    const Decoder* decoder;  // its vocabulary is the draft vocabulary and, where there is one, the
                             // blank; the windows of its layers hold the frames too
    int32_t layers, frames;  // no layer: frames see the newest row alone
    int32_t reads;           // states of the target that a row is made of
    const Norm* norms;       // [reads], or null
    Matrix combination;      // [hidden][reads * hidden], of what is added to the last state; without
                             // outputs nothing is
    int64_t target_vocabulary;
    Norm token_norm;          // of the token that a row reads; without a weight it reads none
    Matrix token_projection;  // [hidden][hidden]
    Matrix births;            // [frames * hidden][hidden]: the newest row's frames
    const float* offsets;     // [frames * hidden]
};

class FrameSession {
public:
    explicit FrameSession(const FrameHead& head)
        : head(head), decoder(*head.decoder), ones(head.frames * head.frames, 1) {
        every.assign(head.layers + 1, 1), nothing.assign(head.layers + 1, nullptr);
    }

    FrameSession(const FrameSession&) = delete;

    // Further rows of the context, and with `probs` [frames][vocabulary] what the frames behind the
    // last one say; no numbers once a state held none. Returns the first row whose token is none of
    // the target's, and then nothing was done; else -1.
    int32_t take(const FusionInput& states, const int64_t* tokens, int64_t count, float* probs,
                 int threads) {
        for (int64_t i = 0; i < count; i++)
            if (tokens[i] < 0 || tokens[i] >= head.target_vocabulary) return (int32_t)i;
        for (int64_t first = head.layers ? 0 : count - 1; first < count; first += MOST_TOGETHER) {
            const int64_t some = std::min(MOST_TOGETHER, count - first);
            const bool is_last = probs && first + some == count;
            read(states, tokens, first, some, is_last ? head.frames : 0, threads);
            if (is_last) bear(threads);
            if (head.layers || is_last) run(is_last ? head.frames : 0, some, probs, threads);
            rows += some;
        }
        if (probs) soften(probs, threads);
        return -1;
    }

private:
    static constexpr int64_t MOST_TOGETHER = 256;  // rows of a pass

    const FrameHead& head;
    const Decoder& decoder;
    int64_t rows = 0;  // of the context
    std::atomic<bool> is_sound{true};  // whether all its states held numbers
    std::vector<float> stream;  // of a pass: the frames, then new rows of the context
    Rows joined, encoded;
    std::vector<std::vector<Floats>> blocks;  // of the cache
    std::vector<uint8_t*> table;
    std::vector<uint8_t> ones, every;
    std::vector<float*> nothing;
    std::vector<int64_t> positions;

    float* row_at(int64_t row) { return &stream[row * decoder.hidden]; }

    // New rows, behind room for frames.
    void read(const FusionInput& states, const int64_t* tokens, int64_t first, int64_t count,
              int64_t frames, int threads) {
        const int width = decoder.hidden;
        stream.resize((frames + count) * width);
        encoded.reserve(decoder.encodings, (int)count, width);
        if (head.combination.outputs)
            joined.reserve(decoder.encodings, (int)count, head.reads * width);
        for_each(count, threads, [&](int64_t i) {
            read_states(states, first + i, i, row_at(frames + i));
            if (!head.token_norm.weight) return;
            float* token = row_of_floats(width);
            embed(decoder, tokens[first + i], token);
            normed(decoder, token, width, head.token_norm, false, token);
            encode(encoded, (int)i, token, width);
        });
        if (head.combination.outputs)
            multiply_together(head.combination, joined, (int)count, threads,
                              [&](int row, int tile, Floats values) {
                                  add_tile(row_at(frames + row), tile, width, values);
                              });
        if (head.token_norm.weight)
            multiply_together(head.token_projection, encoded, (int)count, threads,
                              [&](int row, int tile, Floats values) {
                                  add_tile(row_at(frames + row), tile, width, values);
                              });
    }

    // The states of a row: the last as it is, and all encoded for what is added to it.
    void read_states(const FusionInput& states, int64_t from, int64_t to, float* row) {
        const int width = decoder.hidden, reads = head.reads;
        float* all = head.combination.outputs ? row_of_floats(reads * width) : row;
        for (int i = 0; i < reads; i++) {
            float* state = all + i * width;
            read_state(states, i, from, width, state);
            if (state != row && i + 1 == reads) std::copy(state, state + width, row);
            if (head.norms) normed(decoder, state, width, head.norms[i], false, state);
        }
        if (!are_finite(all, reads * width)) is_sound = false;
        if (head.combination.outputs) encode(joined, (int)to, all, reads * width);
    }

    // The frames of the newest row.
    void bear(int threads) {
        const int width = head.frames * decoder.hidden;
        encoded.reserve(decoder.encodings, 1, decoder.hidden);
        encode(encoded, 0, stream.data() + stream.size() - decoder.hidden, decoder.hidden);
        std::copy(head.offsets, head.offsets + width, stream.data());
        multiply_together(head.births, encoded, 1, threads, [&](int, int tile, Floats values) {
            add_tile(stream.data(), tile, width, values);
        });
    }

    // Frames first, as rows of which more than keys and values is wanted come first.
    void run(int64_t frames, int64_t count, float* logits, int threads) {
        const int64_t last = rows + count;
        if (!head.layers) count = 0;
        reserve(head.layers ? last + frames : 0);
        positions.clear();
        for (int64_t i = 0; i < frames; i++) positions.push_back(last + 1 + i);
        for (int64_t i = 0; i < count; i++) positions.push_back(rows + i);
        const Sequence both[2] = {{0, last, frames, last, frames, table.data()},
                                  {0, rows, count, rows, 0, table.data()}};
        const uint8_t* const sees[2] = {ones.data(), nullptr};
        ForwardInput input{};
        input.only_keys = count > 0, input.num_sequences = (frames > 0) + input.only_keys;
        input.sequences = frames ? both : both + 1;
        input.rows = (int32_t)positions.size();
        input.layers = input.stop = head.layers;
        input.positions = positions.data(), input.stream = stream.data();
        input.attention = input.mlp = every.data(), input.hidden = nothing.data();
        input.sees = sees;
        input.logits = logits;
        pass(decoder, input, threads);
    }

    // Room for so many rows.
    void reserve(int64_t wanted) {
        const int64_t number = decoder.is_bfloat16 ? sizeof(bfloat16) : sizeof(float);
        const CacheShape shape{head.layers, decoder.num_kv_heads, decoder.head_dim * number, false};
        while ((int64_t)table.size() * CACHE_BLOCK < wanted) {
            if (blocks.size() == table.size())  // else there was no memory for a longer table
                blocks.emplace_back((shape.bytes() + sizeof(Floats) - 1) / sizeof(Floats));
            table.push_back((uint8_t*)blocks.back().data());
        }
    }

    void soften(float* probs, int threads) const {
        for_each(head.frames, threads, [&](int64_t frame) {
            float* row = probs + frame * decoder.vocabulary;
            if (!is_sound) return std::fill(row, row + decoder.vocabulary, NAN);
            soften_row(row, decoder.vocabulary, 1, row);
        });
    }
};

}  // namespace draftwood
