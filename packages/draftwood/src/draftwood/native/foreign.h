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
    // their probabilities. Where they are not `wanted`, the node is only made known.
    using Ask = const int64_t* (*)(int64_t node, int64_t parent, int64_t token, int64_t wanted);

    // Python keeps its own state of each node. It makes it when it is asked for candidates there or
    // below, so that a node costs one call, and none where nothing is asked.
    struct Node {
        int64_t parent, token;
        bool known;
    };
    const Ask ask;
    const double* const own_seconds;  // which Python may change; null: no time
    const bool goes_anywhere;
    mutable std::vector<Node> nodes;  // of the tree that grows now

    ForeignSource(Ask ask, const double* seconds, bool anywhere)
        : ask(ask), own_seconds(seconds), goes_anywhere(anywhere) {}

    const double* seconds() const override { return own_seconds; }

    bool anywhere() const override { return goes_anywhere; }

    // drafting.py tells Python itself.
    void learn(const VerifiedTree&) override {}

    State begin(int32_t root) const override {
        nodes.assign(1, {-1, root, false});
        return State::of((int64_t)0);
    }

    State advance(const State& state, int32_t token) const override {
        nodes.push_back({state.as<int64_t>(), token, false});
        return State::of((int64_t)nodes.size() - 1);
    }

    void candidates(const State& state, CandidateList& list) const override {
        const int64_t* read = tell(state.as<int64_t>(), true);
        for (int64_t left = *read++; left > 0; left--) {
            const int64_t evidence = *read++, count = *read++;
            TokenProbs probs(count);
            for (TokenProb& candidate : probs) candidate.token = *read++;
            for (TokenProb& candidate : probs) std::memcpy(&candidate.prob, read++, sizeof(double));
            list.add_numbered(evidence, std::move(probs));
        }
    }

private:
    const int64_t* tell(int64_t number, bool wanted) const {
        Node& node = nodes[number];
        if (node.parent >= 0 && !nodes[node.parent].known) tell(node.parent, false);
        node.known = true;
        const int64_t* answer = ask(number, node.parent, node.token, wanted);
        if (!answer) throw ForeignError();
        return answer;
    }
};

}  // namespace draftwood
