// Levels that a draft model runs over its own cache, in whole steps (native/drawn_trees.py).
#pragma once

#include <memory>

#include "drawn_trees.h"
#include "network.h"
#include "workshop.h"

namespace draftwood {

// CDraftModelText of structures.py: how far a text of a draft model is, told before steps and
// changed by them. The table has room for what they append and for a tree.
struct DraftModelText {
    const Decoder* decoder;
    const CacheShape* shape;
    Blocks blocks;
    const int64_t* late;  // tokens of the text that are not in its cache
    int64_t slot, length, num_late;  // tokens in the cache; of these
    int64_t layers;
    int64_t target_vocabulary;
    int64_t stand_in;  // read in the place of tokens that the model lacks
};

class DraftModelLevels final : public LevelDrafter {
public:
    explicit DraftModelLevels(DraftModelText& text)
        : text(text), every(text.layers, 1), nothing(text.layers + 1, nullptr) {}

    LevelLogits level(const int64_t* drafted, const int64_t* parents, int64_t size, int64_t first,
                      int32_t threads) override {
        if (!first) begin(drafted[0]), levels = 0;
        else place(drafted, parents, size, first);
        const int64_t width = text.decoder->lm_head.outputs;
        const float* logits = run(first ? size - first : 1, threads);
        ran = size;
        return {logits, std::min(width, text.target_vocabulary), width, nullptr};
    }

    // Nodes that ran and became text stay in the cache; the library gives a row the same bits in a
    // tree and behind a text.
    void learn(const VerifiedTree& verified) override {
        int64_t kept = 0;
        if (ran) {
            while (kept < verified.length && verified.path[kept] < ran) kept++;
            text.length += text.num_late, text.num_late = 0;
            keep_path(*text.shape, text.blocks, text.length, verified.path, kept);
            text.length += kept, ran = 0;
        }
        std::vector<int64_t> next(text.late, text.late + text.num_late);
        for (; kept < verified.length; kept++)
            next.push_back(known(verified.tokens[verified.path[kept]]));
        late = std::move(next);
        text.late = late.data(), text.num_late = (int64_t)late.size();
    }

private:
    struct Memory {
        std::unique_ptr<float[]> rows;
        int64_t size = 0;
    };

    DraftModelText& text;
    const std::vector<uint8_t> every;
    const std::vector<float*> nothing;
    std::vector<Memory> logits;  // by level
    size_t levels = 0;
    int64_t ran = 0;  // nodes of the tree whose keys and values are behind what was late
    std::vector<int64_t> late;
    std::vector<int64_t> tokens, positions, depths;
    std::vector<uint8_t> sees;
    Sequence sequence{};

    int64_t known(int64_t token) const {
        return token < text.decoder->vocabulary ? token : text.stand_in;
    }

    // The late tokens and the root, which is the tree's first node.
    void begin(int64_t root) {
        const int64_t count = text.num_late + 1;
        tokens.clear(), positions.clear(), sees.assign(count * count, 0);
        for (int64_t i = 0; i < count; i++) {
            tokens.push_back(known(i < text.num_late ? text.late[i] : root));
            positions.push_back(text.length + i);
            std::fill_n(&sees[i * count], i + 1, 1);
        }
        sequence = {text.slot, text.length, count, text.length, 1, text.blocks};
    }

    void place(const int64_t* drafted, const int64_t* parents, int64_t size, int64_t first) {
        const int64_t before = text.length + text.num_late, count = size - first;
        tokens.clear(), positions.clear(), sees.assign(count * size, 0), depths.assign(size, 0);
        for (int64_t node = 1; node < size; node++) depths[node] = depths[parents[node]] + 1;
        for (int64_t node = first; node < size; node++) {
            tokens.push_back(known(drafted[node])), positions.push_back(before + depths[node]);
            for (int64_t seen = node; seen >= 0; seen = parents[seen])
                sees[(node - first) * size + seen] = 1;
        }
        sequence = {text.slot, before + first, count, before, count, text.blocks};
    }

    const float* run(int64_t wanted, int32_t threads) {
        const uint8_t* const seen = sees.data();
        ForwardInput input{};
        input.num_sequences = 1, input.rows = (int32_t)tokens.size();
        input.layers = input.stop = (int32_t)text.layers;
        input.sequences = &sequence, input.sees = &seen;
        input.tokens = tokens.data(), input.positions = positions.data();
        input.attention = input.mlp = every.data(), input.hidden = nothing.data();
        input.logits = room(wanted * text.decoder->lm_head.outputs);
        pass(*text.decoder, input, threads);
        return input.logits;
    }

    float* room(int64_t size) {
        if (logits.size() <= levels) logits.emplace_back();
        Memory& own = logits[levels++];
        if (own.size < size) own.rows.reset(new float[size]), own.size = size;
        return own.rows.get();
    }
};

}  // namespace draftwood
