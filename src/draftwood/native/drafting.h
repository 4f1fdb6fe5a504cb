// Guesses of several sources merged in one tree: what drafters/merged_sources.py and the sources
// do.
//
// Each structure stands for the Python class of the same name, which says what it does and why;
// both give the same trees, which a test checks.
#pragma once

#include <mutex>
#include <queue>
#include <unordered_map>

#include "noise.h"

namespace draftwood {

constexpr int MOST_ORDER = 4;  // tokens of context in n-gram tables
constexpr int DEEPEST = 64;  // tokens of a match
constexpr int WIDEST_ROW = 16, WIDEST_MATCH = 4, VARIED = 32;
constexpr double RECENT = 1.0, UNSEEN = 0.2, LIKELIEST_CHILD = 0.95;

struct Guess {
    int32_t token;
    double probability;
};

using Guesses = std::vector<Guess>;

inline double* find(Guesses& guesses, int32_t token) {
    for (Guess& guess : guesses)
        if (guess.token == token) return &guess.probability;
    return nullptr;
}

inline void keep_likeliest(Guesses& guesses, size_t most) {
    if (guesses.size() <= most) return;
    std::stable_sort(guesses.begin(), guesses.end(),
                     [](const Guess& a, const Guess& b) { return a.probability > b.probability; });
    guesses.resize(most);
}

// The newest tokens of a text, at most as many as the longest context.
struct Tail {
    int32_t tokens[MOST_ORDER];
    int length = 0;

    Tail and_then(int32_t token, int order) const {
        Tail next;
        const int from = std::max(0, length + 1 - order);
        for (int i = from; i < length; i++) next.tokens[next.length++] = tokens[i];
        next.tokens[next.length++] = token;
        return next;
    }

    // Stands for the last `count` tokens. Two contexts may share a number, once in 2^64, at the
    // cost of bad guesses.
    uint64_t context(int count) const {
        uint64_t number = count;
        for (int i = length - count; i < length; i++)
            number = mixed_up(number ^ (uint64_t)(uint32_t)tokens[i] << 8);
        return number;
    }
};

struct NGramTables {
    int order;
    double fresh;
    int64_t most;
    std::mutex reading;  // several requests may share the tables

    struct Row {
        Guesses guesses;
        int64_t born;
    };
    std::vector<std::unordered_map<uint64_t, Row>> tables;
    int64_t births = 0;

    NGramTables(int order, double fresh, int64_t most)
        : order(order), fresh(fresh), most(most), tables(order) {}

    void learn(const Tail& tail, const Guesses& row) {
        for (int length = 1; length <= tail.length; length++) {
            auto& table = tables[length - 1];
            auto [found, is_new] = table.try_emplace(tail.context(length));
            if (is_new) found->second.born = births++;
            if (is_new || fresh == 1.0) found->second.guesses = row;
            else average(found->second.guesses, row);
            if ((int64_t)table.size() > most) forget_oldest_quarter(table);
        }
    }

    const Guesses* row(const Tail& tail, int length) const {
        auto found = tables[length - 1].find(tail.context(length));
        return found == tables[length - 1].end() ? nullptr : &found->second.guesses;
    }

    void average(Guesses& mean, const Guesses& row) const {
        for (Guess& guess : mean) guess.probability *= 1.0 - fresh;
        for (const Guess& guess : row) {
            if (double* known = find(mean, guess.token)) *known += fresh * guess.probability;
            else mean.push_back({guess.token, fresh * guess.probability});
        }
        keep_likeliest(mean, WIDEST_ROW);
    }

    void forget_oldest_quarter(std::unordered_map<uint64_t, Row>& table) const {
        std::vector<int64_t> ages;
        for (auto& entry : table) ages.push_back(entry.second.born);
        const int64_t count = std::min<int64_t>(1 + most / 4, ages.size());
        std::nth_element(ages.begin(), ages.begin() + count - 1, ages.end());
        const int64_t last = ages[count - 1];
        for (auto entry = table.begin(); entry != table.end();)
            entry = entry->second.born <= last ? table.erase(entry) : std::next(entry);
    }
};

struct Match {
    int32_t state = 0, matched = 0;
};

struct SuffixAutomaton {
    struct State {
        // token and state, in the order in which they came
        std::vector<std::pair<int32_t, int32_t>> following;
        int32_t link = -1, length = 0, count = 0, newest = 0;
    };
    std::vector<State> states{State{}};
    // where many tokens follow a state: place in its list
    std::unordered_map<uint64_t, int32_t> wide;
    int32_t last = 0, length = 0;
    int32_t deepest;  // tokens of the longest match
    int32_t counted = 0;  // state of the longest end of the text of which places are counted

    static constexpr size_t WIDE = 16;

    explicit SuffixAutomaton(int32_t deepest) : deepest(deepest) {}

    int32_t place(int32_t state, int32_t token) const {
        const auto& following = states[state].following;
        if (following.size() > WIDE) {
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
        index(state, following.size() == WIDE + 1 ? 0 : following.size() - 1);
    }

    void index(int32_t state, size_t from) {
        const auto& following = states[state].following;
        if (following.size() <= WIDE) return;
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

    // The longest match of the text so far and one more token that also stands elsewhere.
    Match begin(int32_t token) const {
        const int32_t earlier = std::max(0, states[last].link);
        if (states[earlier].length > deepest) return step({cut(counted, deepest), deepest}, token);
        return step({earlier, states[earlier].length}, token);
    }

    // What followed a match, by how often and how recently it did; nothing where nearly anything
    // did.
    Guesses continuations(Match match) const {
        Guesses guesses;
        const auto& following = states[match.state].following;
        if (following.empty() || following.size() > VARIED) return guesses;
        int32_t latest = 0;
        for (auto [token, next] : following) latest = std::max(latest, states[next].newest);
        double total = 0;
        for (auto [token, next] : following) {
            guesses.push_back(
                {token, states[next].count + (states[next].newest == latest ? RECENT : 0.0)});
            total += guesses.back().probability;
        }
        total += UNSEEN;
        keep_likeliest(guesses, WIDEST_MATCH);
        for (Guess& guess : guesses) guess.probability /= total;
        return guesses;
    }
};

// What was expected after one text.
struct Prediction {
    struct Candidates {
        int32_t kind;
        double weight;
        Guesses guesses;
    };
    std::vector<Candidates> candidates;
    Guesses mixed, means, estimates;
    bool made = false, deep = false;
};

// Settings, as drafting.py fills them in. Kinds of evidence are numbered: those of a source stand
// one after the other.
struct DraftingSettings {
    int32_t sources[3];  // in the order in which they are asked: Source, or -1
    int32_t kinds;
    // number of the kind of no match; others follow by length
    int32_t suffix_kind, suffix_longest, suffix_shortest;
    int32_t n_gram_kind;
    int32_t prior_kind;
    const int64_t* prior_tokens;  // [known ranks]
    const float* prior_probs;
    int64_t prior_known, prior_ranks;
    const double* log_weight;  // of each kind
    const double* before_evidence;  // [2 buckets]
    const int32_t* bucket_of;  // of each of `steps` equal parts of 0..1
    int32_t buckets, steps;
    double rate, strength, decay, floor;
};

enum Source { SUFFIX, N_GRAMS, PRIOR };

struct Estimates {
    const DraftingSettings& settings;
    std::vector<double> log_weight, values[2], hits[2], trials[2];

    explicit Estimates(const DraftingSettings& settings)
        : settings(settings),
          log_weight(settings.log_weight, settings.log_weight + settings.kinds) {
        for (int deep = 0; deep < 2; deep++) {
            const double* before = settings.before_evidence + deep * settings.buckets;
            values[deep].assign(before, before + settings.buckets);
            hits[deep].assign(settings.buckets, 0);
            trials[deep].assign(settings.buckets, 0);
        }
    }

    int bucket(double mean) const {
        return settings.bucket_of[std::min(settings.steps - 1, (int)(mean * settings.steps))];
    }

    // `prediction` holds candidates without weights. `noise`: of the draw that decides; null for
    // greedy texts.
    void predict(Prediction& prediction, bool deep, const PlaceKey* noise) const {
        double total = 0;
        for (auto& opinion : prediction.candidates)
            total += opinion.weight = std::exp(log_weight[opinion.kind]);
        Guesses& mixed = prediction.mixed;
        for (auto& opinion : prediction.candidates) {
            opinion.weight /= total;
            for (const Guess& guess : opinion.guesses) {
                if (double* known = find(mixed, guess.token))
                    *known += opinion.weight * guess.probability;
                else mixed.push_back({guess.token, opinion.weight * guess.probability});
            }
        }
        Guesses means = noise ? coupled(mixed, *noise) : mixed;
        for (const Guess& guess : means) {
            if (!(guess.probability > settings.floor)) continue;
            prediction.means.push_back(guess);
            prediction.estimates.push_back({guess.token, values[deep][bucket(guess.probability)]});
        }
        prediction.deep = deep;
        prediction.made = true;
    }

    static Guesses coupled(const Guesses& mixed, PlaceKey key) {
        Guesses race_score = mixed;
        double total = 0, known = 0;
        for (size_t from = 0; from < mixed.size(); from += LANES) {
            Words tokens{};
            const size_t end = std::min(mixed.size(), from + LANES);
            for (size_t i = from; i < end; i++) tokens[i - from] = mixed[i].token;
            Floats times = exponential_noise(tokens, key);
            for (size_t i = from; i < end; i++) {
                race_score[i].probability /= std::max<double>(times[i - from], 1e-12);
                total += race_score[i].probability;
                known += mixed[i].probability;
            }
        }
        total += std::max(0.0, 1.0 - known);
        for (Guess& guess : race_score) guess.probability /= total;
        return race_score;
    }

    void learn(Prediction& prediction, int32_t token) {
        const double* mean = find(prediction.mixed, token);
        if (mean && *mean > 0 && prediction.candidates.size() > 1)
            for (auto& opinion : prediction.candidates) {
                const double* held = find(opinion.guesses, token);
                const double share = opinion.weight * (held ? *held : 0.0) / *mean;
                log_weight[opinion.kind] += settings.rate * (share - opinion.weight);
            }
        const int deep = prediction.deep;
        for (const Guess& guess : prediction.means) {
            const int at = bucket(guess.probability);
            hits[deep][at] = hits[deep][at] * settings.decay + (guess.token == token);
            trials[deep][at] = trials[deep][at] * settings.decay + 1.0;
            values[deep][at] =
                (settings.strength * settings.before_evidence[deep * settings.buckets + at] +
                 hits[deep][at]) /
                (settings.strength + trials[deep][at]);
        }
    }
};

struct Node {
    int32_t token, parent, depth;
    double chance;
    Match match;
    Tail tail;
};

// One request.
struct Drafting {
    DraftingSettings settings;
    NGramTables* tables;  // null without n-grams
    SuffixAutomaton automaton;
    Tail tail;
    Estimates estimates;
    std::vector<Node> nodes;  // of the last tree, and what was considered besides
    std::vector<Prediction> expected;  // by node
    Prediction open;  // of the token that is now drawn and not yet told

    Drafting(const DraftingSettings& given, NGramTables* tables)
        : settings(given),
          tables(tables),
          automaton(std::max(DEEPEST, given.suffix_longest)),
          estimates(settings) {}
    Drafting(const Drafting&) = delete;

    void append(int32_t parent, int32_t token, double chance) {
        const bool root = parent < 0;
        nodes.push_back({token, parent, root ? 0 : nodes[parent].depth + 1, chance, {}, {}});
        nodes.back().match =
            root ? automaton.begin(token) : automaton.step(nodes[parent].match, token);
        if (tables)
            nodes.back().tail = (root ? tail : nodes[parent].tail).and_then(token, tables->order);
        expected.emplace_back();
    }

    void ask_sources(const Node& node, std::vector<Prediction::Candidates>& candidates) const {
        for (int source : settings.sources) {
            if (source == SUFFIX && node.match.matched >= settings.suffix_shortest) {
                Guesses guesses = automaton.continuations(node.match);
                const int kind =
                    settings.suffix_kind + std::min(node.match.matched, settings.suffix_longest);
                if (!guesses.empty()) candidates.push_back({kind, 0, std::move(guesses)});
            } else if (source == N_GRAMS) {
                for (int length = node.tail.length; length > 0; length--)
                    if (const Guesses* row = tables->row(node.tail, length))
                        candidates.push_back({settings.n_gram_kind + length, 0, *row});
            } else if (source == PRIOR && node.token < settings.prior_known) {
                Guesses guesses;
                for (int64_t rank = 0; rank < settings.prior_ranks; rank++) {
                    const int64_t place = node.token * settings.prior_ranks + rank;
                    if (settings.prior_tokens[place] >= 0)
                        guesses.push_back(
                            {(int32_t)settings.prior_tokens[place], settings.prior_probs[place]});
                }
                if (!guesses.empty())
                    candidates.push_back({settings.prior_kind, 0, std::move(guesses)});
            }
        }
    }

    // Fill the tree until no further guess could pay. The request's key and the number of the draw
    // that decides about the root's children are those of `place_key`; what lies below belongs to
    // the draws behind it. No path gets longer than `room`.
    void grow(int32_t root, const double* costs, const double* slopes, bool noisy, uint64_t key,
              uint64_t place, int64_t room) {
        if (open.made) estimates.learn(open, root);
        nodes.clear();
        expected.clear();
        struct Entry {  // a guess below `place`, or, with token -1, this node to be expanded
            double chance;
            int64_t number;
            int32_t token, place;
            bool operator<(const Entry& other) const {  // the queue puts the largest first
                return chance != other.chance ? chance < other.chance : number > other.number;
            }
        };
        std::priority_queue<Entry> queue;
        std::unique_lock<std::mutex> lock;
        if (tables) lock = std::unique_lock<std::mutex>(tables->reading);
        auto add = [&](int32_t parent, int32_t token, double chance, int64_t& number) {
            append(parent, token, chance);
            number++;
            if (nodes.back().depth < room)
                queue.push({chance * LIKELIEST_CHILD, number, -1, (int32_t)nodes.size() - 1});
        };
        int64_t number = 0;
        double yields = 1.0, rate = 1.0 / costs[0];
        add(-1, root, 1.0, number);
        while (!queue.empty()) {
            const Entry next = queue.top();
            queue.pop();
            const int size = nodes.size();
            if (next.chance < rate * slopes[size - 1]) break;
            if (next.token >= 0) {
                add(next.place, next.token, next.chance, number);
                yields += next.chance;
                rate = std::max(rate, yields / costs[size]);
                continue;
            }
            Prediction& prediction = expected[next.place];
            const Node& node = nodes[next.place];
            ask_sources(node, prediction.candidates);
            const PlaceKey noise = place_key(key, place + node.depth);
            estimates.predict(prediction, node.depth > 0, noisy ? &noise : nullptr);
            for (const Guess& guess : prediction.estimates)
                queue.push({node.chance * guess.probability, ++number, guess.token, next.place});
        }
    }

    // Bits of the sources that proposed a node.
    int32_t proposers(const Node& node) const {
        int32_t bits = 0;
        for (const auto& opinion : expected[node.parent].candidates)
            for (const Guess& guess : opinion.guesses)
                if (guess.token == node.token) bits |= 1 << source_of(opinion.kind);
        return bits;
    }

    int source_of(int32_t kind) const {
        if (kind == settings.prior_kind) return PRIOR;
        const bool suffix = settings.suffix_kind >= 0 && kind >= settings.suffix_kind &&
                            kind <= settings.suffix_kind + settings.suffix_longest;
        return suffix ? SUFFIX : N_GRAMS;
    }

    // What a run said: its nodes, the path that is now text, and each node's likeliest successors
    // [nodes ranks].
    void learn(const int64_t* tokens, const int64_t* parents, int64_t count, const int64_t* path,
               int64_t length, const int64_t* successors, const float* probs, int64_t ranks) {
        for (int64_t i = 0; i + 1 < length; i++)
            if (path[i] < (int64_t)expected.size() && expected[path[i]].made)
                estimates.learn(expected[path[i]], tokens[path[i + 1]]);
        const int64_t end = path[length - 1];
        open = end < (int64_t)expected.size() ? std::move(expected[end]) : Prediction{};
        expected.clear(), nodes.clear();
        if (settings.suffix_kind >= 0)
            for (int64_t i = 0; i < length; i++) automaton.append(tokens[path[i]]);
        if (!tables) return;
        if (!successors) {
            for (int64_t i = 0; i < length; i++)
                tail = tail.and_then(tokens[path[i]], tables->order);
            return;
        }
        std::lock_guard<std::mutex> lock(tables->reading);
        std::vector<Tail> tails(count);
        Guesses row(ranks);
        for (int64_t node = 0; node < count; node++) {
            tails[node] = (parents[node] < 0 ? tail : tails[parents[node]])
                              .and_then(tokens[node], tables->order);
            for (int64_t rank = 0; rank < ranks; rank++)
                row[rank] = {(int32_t)successors[node * ranks + rank], probs[node * ranks + rank]};
            tables->learn(tails[node], row);
        }
        tail = tails[end];
    }
};

}  // namespace draftwood
