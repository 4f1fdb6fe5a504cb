// What drafting.py and step.py call.
#include <functional>

#include "blocks.h"
#include "draft_model_levels.h"
#include "foreign.h"
#include "frames.h"
#include "head.h"
#include "lack_of_memory.h"
#include "lattice.h"
#include "medusa.h"
#include "step.h"
#include "workshop.h"

using namespace draftwood;

// Filled while the library is loaded, whichever file comes first.
std::vector<SourceKind>& draftwood::source_kinds() {
    static std::vector<SourceKind> kinds;
    return kinds;
}

namespace {

// As draftwood_steps says; `begin` is called once the tokens are known to be of the vocabulary.
int32_t make_steps(const Decoder& decoder, const ForwardInput& beside, Step* const* steps,
                   const Sequence* places, int64_t count, int32_t threads,
                   const std::function<void()>& begin) {
    thread_local std::unique_ptr<float[]> logits;
    thread_local int64_t room = 0;  // of the logits
    for (int64_t i = 0; i < count; i++) Stepper(*steps[i], decoder.vocabulary).draft(threads);
    Pass steps_of_pass(decoder, beside, steps, places, count);
    const ForwardInput all = steps_of_pass.joined(logits, room);
    const int32_t unknown = unknown_row(decoder, all);
    if (unknown >= 0) return unknown;
    begin();
    Lap lap;
    pass(decoder, all, threads);
    steps_of_pass.settle(logits.get(), lap(),
                         [&](int64_t number, auto act) { for_each(number, threads, act); });
    return -1;
}

}  // namespace

extern "C" {

// The name of a kind of source; null behind the last. In what follows a kind is its number here.
const char* draftwood_source_kind(int32_t kind) {
    return kind < (int32_t)source_kinds().size() ? source_kinds()[kind].name : nullptr;
}

// Bytes of the settings of a kind of source, or of MergingSettings for -1.
int64_t draftwood_settings_size(int32_t kind) {
    return kind < 0 ? sizeof(MergingSettings) : source_kinds()[kind].settings_size;
}

// What requests share.
void* draftwood_shared_new(int32_t kind, const void* settings) {
    return made([&] { return source_kinds()[kind].share(settings); });
}

void draftwood_shared_free(int32_t kind, void* shared) { source_kinds()[kind].unshare(shared); }

Drafting* draftwood_drafting_new(const MergingSettings* settings) {
    return made([&] { return new Drafting(*settings); });
}

void draftwood_drafting_free(Drafting* drafting) { delete drafting; }

// Returns the number of a further kind of evidence. `name`, below 64, is that of its source.
int32_t draftwood_drafting_add_evidence(Drafting* drafting, double log_weight, int32_t name) {
    return drafting->add_evidence(log_weight, name);
}

// One more source, asked after those that are there; `evidence` [count] are its kinds.
void draftwood_drafting_add_source(Drafting* drafting, int32_t kind, const void* settings,
                                   void* shared, const int32_t* evidence, int32_t count) {
    std::unique_ptr<Source> source(source_kinds()[kind].make(settings, shared));
    drafting->add_source(std::move(source), {evidence, evidence + count});
}

// Whether a source that may rest does not: it reads hidden states then.
int32_t draftwood_drafting_is_open(const Drafting* drafting) {
    return !drafting->worth || drafting->worth->is_open();
}

// One more source, which only Python has. `seconds` [2]: of asking it at the root and deeper, which
// Python may change; null asks it at every node. `anywhere`: also below nodes at which it was not
// asked.
void draftwood_drafting_add_foreign(Drafting* drafting, ForeignSource::Ask ask,
                                    const double* seconds, int32_t anywhere) {
    drafting->add_source(std::make_unique<ForeignSource>(ask, seconds, anywhere), {});
}

// The nodes of a tree in falling order of their chances, no path longer than `room`; returns how
// many there are, FOREIGN_ERROR after an error in Python. `costs` of a step with 0, 1, 2, ... draft
// tokens, `slopes` the least that a further one costs, infinite where the arrays of nodes end.
int32_t draftwood_drafting_grow(Drafting* drafting, int32_t root, const double* costs,
                                const double* slopes, double others, int32_t noisy, uint64_t key,
                                uint64_t place, int64_t room, int32_t threads, int64_t* tokens,
                                int64_t* parents, double* chances) {
    return guarded([&] {
        try {
            drafting->grow(root, costs, slopes, others, noisy, key, place, room, threads);
        } catch (const ForeignError&) {
            return FOREIGN_ERROR;
        }
        int32_t count = 0;
        for (const Node& node : drafting->nodes) {
            tokens[count] = node.token, parents[count] = node.parent, chances[count] = node.chance;
            count++;
        }
        return count;
    });
}

// Under which names nodes 1 to `count` - 1 of the last tree were proposed, as bits.
void draftwood_drafting_proposers(const Drafting* drafting, int32_t count, uint64_t* bits) {
    count = std::min<int32_t>(count, drafting->nodes.size());
    for (int32_t node = 1; node < count; node++)
        bits[node] = drafting->proposers(drafting->nodes[node]);
}

// `successors` and `probs` [count ranks] may be null: then only the path is taken in.
int32_t draftwood_drafting_learn(Drafting* drafting, const int64_t* tokens, const int64_t* parents,
                                 int64_t count, const int64_t* path, int64_t length,
                                 const int64_t* successors, const float* probs, int64_t ranks,
                                 const float* const* hidden) {
    return guarded([&] {
        drafting->learn({tokens, parents, count, path, length, successors, probs, ranks, hidden});
        return 0;
    });
}

// Seconds that sources took which take their time, since this was asked last.
double draftwood_drafting_spent(Drafting* drafting) { return drafting->spent(); }

HeadDrafting* draftwood_head_drafting_new(const HeadDraftingSettings* settings) {
    return made([&] { return new HeadDrafting(*settings); });
}

void draftwood_head_drafting_free(HeadDrafting* drafting) { delete drafting; }

// Tokens that became text, and the target's states at them: of each layer that is read [count
// width].
int32_t draftwood_head_drafting_learn(HeadDrafting* drafting, const int64_t* tokens, int64_t count,
                                      const float* const* hidden) {
    return guarded([&] {
        std::vector<int64_t> path(count);
        for (int64_t i = 0; i < count; i++) path[i] = i;
        drafting->learn({tokens, nullptr, count, path.data(), count, nullptr, nullptr, 0, hidden});
        return 0;
    });
}

// What drafts the levels of drawn trees: a head, or a draft model, which is freed by itself.
LevelDrafter* draftwood_head_levels(HeadDrafting* drafting) { return drafting; }

LevelDrafter* draftwood_model_levels_new(DraftModelText* text) {
    return made([&] { return new DraftModelLevels(*text); });
}

void draftwood_model_levels_free(LevelDrafter* levels) { delete levels; }

JacobiRows* draftwood_jacobi_new(const JacobiSettings* settings) {
    return made([&] { return new JacobiRows(*settings); });
}

void draftwood_jacobi_free(JacobiRows* rows) { delete rows; }

LevelDrafter* draftwood_jacobi_levels(JacobiRows* rows) { return rows; }

DrawnTrees* draftwood_drawn_new(const DrawnShape* shape, LevelDrafter* drafter) {
    return made([&] { return new DrawnTrees(*shape, *drafter); });
}

void draftwood_drawn_free(DrawnTrees* drawn) { delete drawn; }

// A step of each of several texts. `beside` holds the layers to run, other sequences for the same
// pass (there may be none), and where the states of all rows go: the others' first, then those of
// the steps in their order. `places`: where each text goes on. Returns what draftwood_run does.
int32_t draftwood_steps(const Decoder* decoder, const ForwardInput* beside, Step* const* steps,
                        const Sequence* places, int64_t count, int32_t threads) {
    return guarded([&] {
        return make_steps(*decoder, *beside, steps, places, count, threads, [] {});
    });
}

// Steps of texts in a row, with no other sequence in their passes; each finds the path of the one
// before in the cache, and that of the last one is left to who asked. `rows`: of each text its steps
// [runs->steps], of which the first is set up. The row ends for all where it ends for one of them.
// Returns how many were made; 0 for a token beyond the vocabulary.
int32_t draftwood_step_run(const Decoder* decoder, const ForwardInput* beside, Step* const* rows,
                           const Sequence* places, const StepRun* const* runs, int64_t count,
                           int32_t threads) {
    return guarded([&] {
        StepRow row(rows, places, runs, count);
        const int64_t heard = interruptions.load();
        for (int32_t made = 0; made < row.most; made++) {
            Lap lap;
            row.begin(made, decoder->vocabulary);
            const ForwardInput own = row.beside(*beside, made, decoder->hidden);
            const int32_t unknown =
                make_steps(*decoder, own, row.steps.data(), row.here.data(), count, threads,
                           [&] { row.keep_paths(made); });
            if (unknown >= 0) return made;
            if (row.ends(lap()) || interruptions.load() != heard) return made + 1;
        }
        return row.most;
    });
}

// End the rows of steps that are being made with the step that is under way.
void draftwood_interrupt() { interruptions.fetch_add(1); }

// Bytes of a structure that Python hands over, in the order of STRUCTURES in structures.py; 0
// behind the last.
int64_t draftwood_structure_size(int32_t index) {
    const int64_t sizes[] = {sizeof(Matrix),     sizeof(Norm),         sizeof(Expert),
                             sizeof(Experts),    sizeof(Layer),        sizeof(Gating),
                             sizeof(Decoder),    sizeof(ForwardInput), sizeof(StoredBlocks),
                             sizeof(Step),       sizeof(Fusion),       sizeof(FusionInput),
                             sizeof(Head),       sizeof(Successors),   sizeof(HeadTree),
                             sizeof(CacheShape), sizeof(FrameHead),    sizeof(MedusaHeads),
                             sizeof(Lattice),    sizeof(LatticeTree),
                             sizeof(HeadDraftingSettings), sizeof(DrawnShape),
                             sizeof(DraftModelText), sizeof(StepRun),
                             sizeof(Filters),    sizeof(TaskTime),     sizeof(TaskTrace),
                             sizeof(LowRank),    sizeof(LayerAdapter), sizeof(MarkedRows),
                             sizeof(JacobiSettings), sizeof(Recurrence),
                             sizeof(AttentionShape), sizeof(LayerInputs),  sizeof(CacheLayer)};
    return index < (int32_t)(sizeof(sizes) / sizeof(*sizes)) ? sizes[index] : 0;
}
}
