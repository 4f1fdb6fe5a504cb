// Drafts of a trained head in whole steps: trees of its likeliest nodes, or the levels of a drawn
// tree (native/head_drafting.py).
#pragma once

#include "drawn_trees.h"
#include "late_rows.h"

namespace draftwood {

// CHeadDraftingSettings of structures.py.
struct HeadDraftingSettings {
    HeadSession* session;
    Successors* found;      // as many of each row as a node may have children
    const int32_t* layers;  // [reads] of the target, whose inputs the head reads
    int64_t width;          // of a hidden state
    int32_t reads, nodes, depth, level_width;  // as of HeadTree
    float least_log_prob;                      // likewise
};

class HeadDrafting final : public LevelDrafter {
public:
    explicit HeadDrafting(const HeadDraftingSettings& settings)
        : settings(settings), late(settings.layers, settings.reads, settings.width) {}

    // A tree of at most `most` nodes besides the root, no path longer than `room`; gives the number
    // of nodes, the root among them.
    int64_t grow(int64_t root, int64_t most, int64_t room, int32_t threads, int64_t* tokens,
                 int64_t* parents, double* chances) {
        is_broken = false, seconds = 0;
        tokens[0] = root, parents[0] = -1, chances[0] = 1;
        if (std::min(most, room) < 1 || !is_ready()) return 1;
        log_probs.resize(1 + most);
        HeadTree tree{};
        tree.max_nodes = (int32_t)std::min<int64_t>(settings.nodes, most);
        tree.depth = (int32_t)std::min<int64_t>(settings.depth, room);
        tree.width = settings.level_width;
        tree.least_log_prob = settings.least_log_prob;
        tree.tokens = tokens, tree.parents = parents, tree.log_probs = log_probs.data();
        Lap lap;
        const int32_t odd =
            late.take(root, [&](const FusionInput& fused, const int64_t* rows, int64_t count) {
                return head_draft(*settings.session, fused, rows, count, *settings.found, tree,
                                  threads);
            });
        seconds = lap(), is_broken = odd < 0 && tree.is_broken;
        if (odd >= 0 || is_broken) return 1;
        for (int32_t i = 1; i <= tree.nodes; i++) chances[i] = std::exp(log_probs[i]);
        return 1 + tree.nodes;
    }

    bool is_ready() const override { return !settings.reads || late.count(); }

    LevelLogits level(const int64_t* tokens, const int64_t* parents, int64_t size, int64_t first,
                      int32_t threads) override {
        const int32_t odd = first ? go_on(tokens, parents, size, first, threads)
                                  : begin(tokens[0], threads);
        const Head& head = settings.session->of();
        const int64_t width = head.decoder->vocabulary;
        return {odd < 0 ? settings.found->logits : nullptr, width, width, head.draft_tokens};
    }

    void learn(const VerifiedTree& verified) override {
        if (settings.reads && !verified.hidden) return late.forget(late.count());
        late.add(verified, verified.length + late.count());
    }

    // Whether the head said NaN of the last tree.
    bool is_broken = false;
    double seconds = 0;  // that the last tree took

private:
    const HeadDraftingSettings settings;
    LateRows late;
    std::vector<float> log_probs;
    std::vector<int64_t> above;

    int32_t begin(int64_t root, int32_t threads) {
        settings.session->keeps_levels = true;
        return late.take(root, [&](const FusionInput& fused, const int64_t* rows, int64_t count) {
            return head_take(*settings.session, fused, rows, count, *settings.found, threads);
        });
    }

    // The root has no row among the drafted ones.
    int32_t go_on(const int64_t* tokens, const int64_t* parents, int64_t size, int64_t first,
                  int32_t threads) {
        above.clear();
        for (int64_t node = first; node < size; node++) above.push_back(parents[node] - 1);
        return head_level(*settings.session, above.data(), tokens + first, size - first,
                          *settings.found, threads);
    }
};

}  // namespace draftwood
