// The suffix automaton of integrations/suffix_automaton.py, and what followed a match in it.
#pragma once

#include <deque>
#include <unordered_map>

#include "source.h"

namespace draftwood {

// CMatchSettings of sources/auto/suffix.py.
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

// Most states stand for one place alone, the longest end of the text there, and nothing is kept of
// them but their link: a token that stands nowhere else begins the text, so one other state follows
// each, with the text's next token. They are the numbers -1, -2, ... by length; the others have a
// node. It takes some 50 bytes per token.
struct SuffixAutomaton {
    static constexpr int32_t NONE = INT32_MIN, BEGINNING = -2;

    struct Node {
        int32_t link = NONE, length = 0, count = 0, newest = 0;
        int32_t first = -1, last = -1;  // of the edges, in the order in which they came
        int32_t width = 0;              // edges
    };
    struct Edge {
        int32_t token, state, after;
    };
    // no vectors: half of their memory may be room for more
    std::deque<int32_t> text, links;  // by length of the text, links[0] is not used
    std::deque<Node> nodes;
    std::deque<Edge> edges;
    // where many tokens follow a state: number of the edge
    std::unordered_map<uint64_t, int32_t> wide;
    int32_t last = 0;
    int32_t deepest;  // tokens of the longest match
    int32_t indexed;
    int32_t counted = 0;  // state of the longest end of the text of which places are counted

    explicit SuffixAutomaton(const MatchSettings& settings)
        : links(1, NONE), nodes(1), deepest(settings.deepest), indexed(settings.indexed) {
        append(BEGINNING);
    }

    // Tokens of the text.
    int32_t length() const { return text.size() - 1; }

    int32_t length_of(int32_t state) const { return state < 0 ? -state : nodes[state].length; }
    int32_t link(int32_t state) const { return state < 0 ? links[-state] : nodes[state].link; }
    int32_t count(int32_t state) const { return state < 0 ? 1 : nodes[state].count; }
    int32_t newest(int32_t state) const { return state < 0 ? -state : nodes[state].newest; }
    int32_t width(int32_t state) const {
        return state < 0 ? -state < (int32_t)text.size() : nodes[state].width;
    }

    // Calls `take` with each token that follows a state and the state behind it.
    template <typename Take>
    void each_following(int32_t state, Take take) const {
        if (state < 0) {
            if (width(state)) take(text[-state], state - 1);
            return;
        }
        for (int32_t i = nodes[state].first; i >= 0; i = edges[i].after)
            take(edges[i].token, edges[i].state);
    }

    int32_t edge(int32_t node, int32_t token) const {
        if (nodes[node].width > indexed) {
            auto found = wide.find(number(node, token));
            return found == wide.end() ? -1 : found->second;
        }
        int32_t i = nodes[node].first;
        while (i >= 0 && edges[i].token != token) i = edges[i].after;
        return i;
    }

    int32_t after(int32_t state, int32_t token) const {
        if (state < 0) return width(state) && text[-state] == token ? state - 1 : NONE;
        const int32_t found = edge(state, token);
        return found < 0 ? NONE : edges[found].state;
    }

    void add(int32_t node, int32_t token, int32_t state) {
        Node& above = nodes[node];
        const int32_t added = edges.size();
        edges.push_back({token, state, -1});
        (above.last < 0 ? above.first : edges[above.last].after) = added;
        above.last = added;
        above.width++;
        if (above.width <= indexed) return;
        const bool is_first = above.width == indexed + 1;
        for (int32_t i = is_first ? above.first : added; i >= 0; i = edges[i].after)
            wide[number(node, edges[i].token)] = i;
    }

    static uint64_t number(int32_t node, int32_t token) {
        return (uint64_t)(uint32_t)node << 32 | (uint32_t)token;
    }

    void append(int32_t token) {
        int32_t before = last < 0 ? links[-last] : last;
        text.push_back(token);
        links.push_back(NONE);
        last = -(int32_t)text.size();
        for (; before != NONE && after(before, token) == NONE; before = nodes[before].link)
            add(before, token, last);
        const int32_t link = before == NONE ? 0 : split(before, token);
        links[-last] = link;
        counted = cut(after(counted, token), deepest + 1);
        for (int32_t end = counted; end != 0; end = this->link(end)) {
            if (end < 0) continue;
            nodes[end].count++;
            nodes[end].newest = text.size();
        }
    }

    int32_t split(int32_t before, int32_t token) {
        const int32_t broad = after(before, token);
        if (nodes[before].length + 1 == length_of(broad)) return broad;
        const int32_t narrow = nodes.size();
        Node made;
        made.link = link(broad), made.length = nodes[before].length + 1;
        made.count = count(broad), made.newest = newest(broad);
        nodes.push_back(made);
        each_following(broad, [&](int32_t next, int32_t state) { add(narrow, next, state); });
        (broad < 0 ? links[-broad] : nodes[broad].link) = narrow;
        for (; before != NONE && after(before, token) == broad; before = nodes[before].link)
            edges[edge(before, token)].state = narrow;
        return narrow;
    }

    // The state of the last `length` tokens of what `state` stands for.
    int32_t cut(int32_t state, int32_t length) const {
        while (length_of(link(state)) >= length) state = link(state);
        return state;
    }

    // The longest end of the text that also stands elsewhere in it.
    Match repeated() const {
        const int32_t earlier = link(last);
        if (length_of(earlier) > deepest) return {cut(counted, deepest), deepest};
        return {earlier, length_of(earlier)};
    }

    Match step(Match match, int32_t token) const {
        int32_t state;
        while ((state = after(match.state, token)) == NONE) {
            match.state = link(match.state);
            if (match.state == NONE) return {};
            match.matched = std::min(match.matched, length_of(match.state));
        }
        return match.matched < deepest ? Match{state, match.matched + 1}
                                       : Match{cut(state, deepest), deepest};
    }
};

// The likeliest continuations of a match, one kind of evidence for each length; none of one that is
// too short, or that nearly anything follows.
inline void add_continuations(const SuffixAutomaton& automaton, Match match,
                              const MatchSettings& settings, CandidateList& list) {
    const int32_t state = match.state, width = automaton.width(state);
    if (match.matched < settings.shortest || width == 0 || width > settings.varied) return;
    int32_t latest = 0;
    automaton.each_following(state, [&](int32_t, int32_t next) {
        latest = std::max(latest, automaton.newest(next));
    });
    TokenProbs probs;
    double total = 0;
    automaton.each_following(state, [&](int32_t token, int32_t next) {
        if (token == settings.separator) return;
        const double recent = automaton.newest(next) == latest ? settings.recent : 0.0;
        probs.push_back({token, automaton.count(next) + recent});
        total += probs.back().prob;
    });
    if (probs.empty()) return;
    total += settings.unseen;
    keep_topk(probs, settings.widest);
    for (TokenProb& candidate : probs) candidate.prob /= total;
    list.add(std::min(match.matched, settings.longest), std::move(probs));
}

}  // namespace draftwood
