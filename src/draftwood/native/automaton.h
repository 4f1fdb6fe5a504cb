// The suffix automaton of sources/suffix.py, and what followed a match in it.
#pragma once

#include <unordered_map>

#include "source.h"

namespace draftwood {

// CMatchSettings of sources/suffix.py.
struct MatchSettings {
    double recent, unseen;
    int32_t deepest, longest, shortest;
    int32_t varied, widest;
    int32_t separator;
    int32_t indexed;  // where more tokens follow a state, a table finds them
};

struct Match {
    int32_t state = 0, matched = 0;
};

struct SuffixAutomaton {
    struct Node {
        // token and state, in the order in which they came
        std::vector<std::pair<int32_t, int32_t>> following;
        int32_t link = -1, length = 0, count = 0, newest = 0;
    };
    std::vector<Node> states{Node{}};
    // where many tokens follow a state: place in its list
    std::unordered_map<uint64_t, int32_t> wide;
    int32_t last = 0, length = 0;
    int32_t deepest;  // tokens of the longest match
    size_t indexed;
    int32_t counted = 0;  // state of the longest end of the text of which places are counted

    explicit SuffixAutomaton(const MatchSettings& settings)
        : deepest(settings.deepest), indexed(settings.indexed) {}

    int32_t place(int32_t state, int32_t token) const {
        const auto& following = states[state].following;
        if (following.size() > indexed) {
            auto found = wide.find(number(state, token));
            return found == wide.end() ? -1 : found->second;
        }
        for (size_t i = 0; i < following.size(); i++)
            if (following[i].first == token) return i;
        return -1;
    }

    int32_t after(int32_t state, int32_t token) const {
        const int32_t found = place(state, token);
        return found < 0 ? -1 : states[state].following[found].second;
    }

    void add(int32_t state, int32_t token, int32_t next) {
        auto& following = states[state].following;
        following.push_back({token, next});
        index(state, following.size() == indexed + 1 ? 0 : following.size() - 1);
    }

    void index(int32_t state, size_t from) {
        const auto& following = states[state].following;
        if (following.size() <= indexed) return;
        for (size_t i = from; i < following.size(); i++)
            wide[number(state, following[i].first)] = i;
    }

    static uint64_t number(int32_t state, int32_t token) {
        return (uint64_t)(uint32_t)state << 32 | (uint32_t)token;
    }

    void append(int32_t token) {
        length++;
        const int32_t state = grow();
        states[state].length = states[last].length + 1;
        int32_t before = last;
        for (; before >= 0 && place(before, token) < 0; before = states[before].link)
            add(before, token, state);
        const int32_t link = before < 0 ? 0 : split(before, token);
        states[state].link = link;
        last = state;
        counted = cut(after(counted, token), deepest + 1);
        for (int32_t end = counted; end > 0; end = states[end].link) {
            states[end].count++;
            states[end].newest = length;
        }
    }

    int32_t split(int32_t before, int32_t token) {
        const int32_t broad = after(before, token);
        if (states[before].length + 1 == states[broad].length) return broad;
        const int32_t narrow = grow();
        states[narrow] = states[broad];
        states[narrow].length = states[before].length + 1;
        index(narrow, 0);
        states[broad].link = narrow;
        for (; before >= 0 && after(before, token) == broad; before = states[before].link)
            states[before].following[place(before, token)].second = narrow;
        return narrow;
    }

    int32_t grow() {
        states.emplace_back();
        return states.size() - 1;
    }

    // The state of the last `length` tokens of what `state` stands for.
    int32_t cut(int32_t state, int32_t length) const {
        while (states[states[state].link].length >= length) state = states[state].link;
        return state;
    }

    // The longest end of the text that also stands elsewhere in it.
    Match repeated() const {
        const int32_t earlier = std::max(0, states[last].link);
        if (states[earlier].length > deepest) return {cut(counted, deepest), deepest};
        return {earlier, states[earlier].length};
    }

    Match step(Match match, int32_t token) const {
        while (place(match.state, token) < 0) {
            match.state = states[match.state].link;
            if (match.state < 0) return {};
            match.matched = states[match.state].length;
        }
        const int32_t state = after(match.state, token);
        return match.matched < deepest ? Match{state, match.matched + 1}
                                       : Match{cut(state, deepest), deepest};
    }
};

// The likeliest continuations of a match, one kind of evidence for each length; none of one that is
// too short, or that nearly anything follows.
inline void add_continuations(const SuffixAutomaton& automaton, Match match,
                              const MatchSettings& settings, CandidateList& list) {
    const auto& states = automaton.states;
    const auto& following = states[match.state].following;
    if (match.matched < settings.shortest) return;
    if (following.empty() || following.size() > (size_t)settings.varied) return;
    int32_t latest = 0;
    for (auto [token, next] : following) latest = std::max(latest, states[next].newest);
    TokenProbs probs;
    double total = 0;
    for (auto [token, next] : following) {
        if (token == settings.separator) continue;
        const double recent = states[next].newest == latest ? settings.recent : 0.0;
        probs.push_back({token, states[next].count + recent});
        total += probs.back().prob;
    }
    if (probs.empty()) return;
    total += settings.unseen;
    keep_topk(probs, settings.widest);
    for (TokenProb& candidate : probs) candidate.prob /= total;
    list.add(std::min(match.matched, settings.longest), std::move(probs));
}

}  // namespace draftwood
