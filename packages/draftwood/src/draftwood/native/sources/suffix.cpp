// What followed the newest tokens in the request's own text: sources/auto/suffix.py.
#include "../automaton.h"

namespace draftwood {

struct SuffixSource : Source {
    static constexpr const char* KIND = "suffix";
    using Settings = MatchSettings;
    using Shared = Nothing;

    const Settings settings;
    SuffixAutomaton automaton;

    SuffixSource(const Settings& settings, Shared*) : settings(settings), automaton(settings) {}

    void learn(const VerifiedTree& verified) override {
        for (int64_t i = 0; i < verified.length; i++)
            automaton.append(verified.tokens[verified.path[i]]);
    }

    State begin(int32_t root) const override {
        return State::of(automaton.step(automaton.repeated(), root));
    }

    State advance(const State& state, int32_t token) const override {
        return State::of(automaton.step(state.as<Match>(), token));
    }

    void candidates(const State& state, CandidateList& list) const override {
        add_continuations(automaton, state.as<Match>(), settings, list);
    }
};

[[maybe_unused]] const bool registered = register_source<SuffixSource>();

}  // namespace draftwood
