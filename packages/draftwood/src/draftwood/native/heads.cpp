// What head_session.py calls.
#include "lack_of_memory.h"
#include "late_rows.h"
#include "workshop.h"

namespace draftwood {

namespace {

// Runs the passes of a head.
struct Runner {
    const int threads;

    void operator()(const Decoder& decoder, const ForwardInput& run) const {
        pass(decoder, run, threads);
    }

    template <class Act>
    void each(int64_t count, Act act) const {
        for_each(count, threads, act);
    }
};

}  // namespace

int32_t head_take(HeadSession& session, const FusionInput& features, const int64_t* tokens,
                  int64_t count, Successors& found, int32_t threads) {
    return session.take(features, tokens, count, found, Runner{threads});
}

int32_t head_level(HeadSession& session, const int64_t* parents, const int64_t* tokens,
                   int64_t count, Successors& found, int32_t threads) {
    return session.level(parents, tokens, count, found, Runner{threads});
}

int32_t head_draft(HeadSession& session, const FusionInput& features, const int64_t* tokens,
                   int64_t count, Successors& found, HeadTree& tree, int32_t threads) {
    const Runner run{threads};
    const int32_t odd = session.take(features, tokens, count, found, run);
    if (odd >= 0) return odd;
    tree.tokens[0] = tokens[count - 1];
    session.draft(tree, found, run);
    return -1;
}

}  // namespace draftwood

extern "C" {

// A sequence of a drafter's head; the head stays where it is.
draftwood::HeadSession* draftwood_head_new(const draftwood::Head* head) {
    return draftwood::made([&] { return new draftwood::HeadSession(*head); });
}

void draftwood_head_free(draftwood::HeadSession* session) { delete session; }

// As HeadSession says; the number of a row whose token, or parent, is none, and then nothing was
// run; else -1.
int32_t draftwood_head_take(draftwood::HeadSession* session, const draftwood::FusionInput* features,
                            const int64_t* tokens, int64_t count, draftwood::Successors* found,
                            int32_t threads) {
    using namespace draftwood;
    return guarded(
        [&] { return head_take(*session, *features, tokens, count, *found, threads); });
}

int32_t draftwood_head_level(draftwood::HeadSession* session, const int64_t* parents,
                             const int64_t* tokens, int64_t count, draftwood::Successors* found,
                             int32_t threads) {
    using namespace draftwood;
    return guarded(
        [&] { return head_level(*session, parents, tokens, count, *found, threads); });
}

int32_t draftwood_head_draft(draftwood::HeadSession* session,
                             const draftwood::FusionInput* features, const int64_t* tokens,
                             int64_t count, draftwood::Successors* found,
                             draftwood::HeadTree* tree, int32_t threads) {
    using namespace draftwood;
    return guarded(
        [&] { return head_draft(*session, *features, tokens, count, *found, *tree, threads); });
}

// Rows that stay.
void draftwood_head_keep(draftwood::HeadSession* session, int64_t rows) { session->keep(rows); }

int64_t draftwood_head_committed(const draftwood::HeadSession* session) {
    return session->committed();
}

// The first `rows` of another session of the same head, which has as many.
int32_t draftwood_head_copy(draftwood::HeadSession* session, const draftwood::HeadSession* other,
                            int64_t rows) {
    return draftwood::guarded([&] { return session->copy(*other, rows), 0; });
}
}
