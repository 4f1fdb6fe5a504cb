// What frames.py and medusa.py call.
#include "frames.h"
#include "lack_of_memory.h"
#include "lattice.h"
#include "medusa.h"

extern "C" {

// A sequence of a CTC head; the head stays where it is.
draftwood::FrameSession* draftwood_frames_new(const draftwood::FrameHead* head) {
    return draftwood::made([&] { return new draftwood::FrameSession(*head); });
}

void draftwood_frames_free(draftwood::FrameSession* session) { delete session; }

// As FrameSession says.
int32_t draftwood_frames_take(draftwood::FrameSession* session,
                              const draftwood::FusionInput* states, const int64_t* tokens,
                              int64_t count, float* probs, int32_t threads) {
    return draftwood::guarded(
        [&] { return session->take(*states, tokens, count, probs, threads); });
}

int32_t draftwood_medusa_logits(const draftwood::MedusaHeads* heads,
                                const draftwood::FusionInput* state, const int32_t* levels,
                                int64_t rows, const int64_t* tokens, int64_t most, float* logits,
                                int32_t threads) {
    return draftwood::guarded([&] {
        return draftwood::medusa_logits(*heads, *state, levels, rows, tokens, most, logits,
                                        threads);
    });
}

void draftwood_likeliest_prefixes(const draftwood::Lattice* lattice, draftwood::LatticeTree* tree) {
    draftwood::likeliest_prefixes(*lattice, *tree);
}

void draftwood_collapsed_alignments(const draftwood::Lattice* lattice, int32_t ranks,
                                    int64_t alignments, draftwood::LatticeTree* tree) {
    draftwood::collapsed_alignments(*lattice, ranks, alignments, *tree);
}

void draftwood_collapsed_paths(const draftwood::Lattice* lattice, int64_t count,
                               const int64_t* parents, const int64_t* ranks,
                               draftwood::LatticeTree* tree) {
    draftwood::collapsed_paths(*lattice, count, parents, ranks, *tree);
}
}
