// A source that only Python has, asked by callback.
#pragma once

#include "source.h"

namespace draftwood {

// Python raised an error, which drafting.py keeps.
struct ForeignError {};
constexpr int32_t FOREIGN_ERROR = -2;  // what functions return then, which return -1 or more else

struct ForeignSource : Source {
    // Numbers of a node and of its parent in this tree, -1 above the root, and the node's token.
    // Returns the candidates after the node, or null after an error: how many kinds of evidence
    // speak, then for each its number, how many tokens it holds likely, these and, in doubles,
    // their probabilities.
    using Ask = const int64_t* (*)(int64_t node, int64_t parent, int64_t token);

    // Python keeps its own state of each node. It makes it when it is asked for candidates, so that
    // a node costs one call, and none where nothing is asked below it.
    struct Node {
        int64_t number, parent, token;
    };
    const Ask ask;
    const double* const own_seconds;  // which Python may change; null: no time
    mutable int64_t nodes = 0;  // of the tree that grows now

    ForeignSource(Ask ask, const double* seconds) : ask(ask), own_seconds(seconds) {}

    const double* seconds() const override { return own_seconds; }

    // drafting.py tells Python itself.
    void learn(const VerifiedTree&) override {}

    State begin(int32_t root) const override {
        nodes = 1;
        return State::of(Node{0, -1, root});
    }

    State advance(const State& state, int32_t token) const override {
        return State::of(Node{nodes++, state.as<Node>().number, token});
    }

    void candidates(const State& state, CandidateList& list) const override {
        const Node node = state.as<Node>();
        const int64_t* read = ask(node.number, node.parent, node.token);
        if (!read) throw ForeignError();
        for (int64_t left = *read++; left > 0; left--) {
            const int64_t evidence = *read++, count = *read++;
            TokenProbs probs(count);
            for (TokenProb& candidate : probs) candidate.token = *read++;
            for (TokenProb& candidate : probs) std::memcpy(&candidate.prob, read++, sizeof(double));
            list.add_numbered(evidence, std::move(probs));
        }
    }
};

}  // namespace draftwood
