// Candidates of several sources merged in one tree: sources/acceptance.py has the numbers, and the
// references of the tests, merger.py and estimates.py, do the same in Python.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <queue>

#include "noise.h"
#include "source.h"
#include "worth.h"

namespace draftwood {

// What was expected after one text.
struct Prediction {
    std::vector<Candidates> candidates;
    TokenProbs mixed, means, estimates;
    bool made = false;
    uint64_t asked = 0;  // a bit for each source that takes its time and spoke
    int table = 0;       // of the estimates
    // before a source was asked that may rest
    TokenProbs without;  // estimates
    int32_t best_without = -1;
    double chance = 1;  // of the node
    double stated = 0;  // how much it raised the best estimate

    double best() const {
        double found = 0;
        for (const TokenProb& candidate : estimates) found = std::max(found, candidate.prob);
        return found;
    }

    int32_t likeliest() const {
        TokenProb found{-1, 0};
        for (const TokenProb& candidate : estimates)
            if (candidate.prob > found.prob) found = candidate;
        return found.token;
    }

};

// Whether a token is worth at least so much.
inline bool holds(const TokenProbs& estimates, int32_t token, double least) {
    for (const TokenProb& candidate : estimates)
        if (candidate.token == token) return candidate.prob > least;
    return false;
}

// CMergingSettings of drafting.py.
struct MergingSettings {
    const double* before_evidence;  // [2 + 2 slow][buckets]
    const int32_t* bucket_of;  // of each of `steps` equal parts of 0..1
    const double *asking_gain, *asking_reach;  // [slow] and [slow 2]; see SlowPrior of acceptance.py
    int32_t buckets, steps;
    double rate, strength, decay, floor;
    double least_noise;  // smaller exponential numbers count as this
    double sharpness;        // of what is expected of a draw
    double likeliest_child;  // a node is expanded as if its best child had this estimate
    double asking_strength, asking_decay;  // see Asking of acceptance.py
    int32_t asking_trial;
    int32_t slow;  // sources that take their time
};

struct Estimates {
    const MergingSettings settings;
    std::vector<double> log_weight;  // of each kind of evidence
    // of root and deeper nodes, and again of both for each source that takes its time and spoke last
    std::vector<std::vector<double>> before, values, hits, trials;

    explicit Estimates(const MergingSettings& settings) : settings(settings) {
        for (int table = 0; table < 2 * (1 + settings.slow); table++) {
            const double* first = settings.before_evidence + table * settings.buckets;
            before.emplace_back(first, first + settings.buckets);
            values.push_back(before.back());
            hits.emplace_back(settings.buckets, 0.0);
            trials.emplace_back(settings.buckets, 0.0);
        }
    }

    int bucket(double mean) const {
        return settings.bucket_of[(int)std::min(settings.steps - 1.0, mean * settings.steps)];
    }

    // `prediction` holds candidates without weights. `noise`: of the draw that decides; null for
    // greedy texts.
    void predict(Prediction& prediction, int table, const PlaceKey* noise) const {
        prediction.table = table;
        prediction.mixed.clear(), prediction.means.clear(), prediction.estimates.clear();
        double total = 0;
        for (auto& said : prediction.candidates)
            total += said.weight = std::exp(log_weight[said.evidence]);
        TokenProbs& mixed = prediction.mixed;
        for (auto& said : prediction.candidates) {
            said.weight /= total;
            for (const TokenProb& candidate : said.probs) {
                if (double* known = find(mixed, candidate.token))
                    *known += said.weight * candidate.prob;
                else mixed.push_back({candidate.token, said.weight * candidate.prob});
            }
        }
        TokenProbs means = noise ? coupled(mixed, *noise) : mixed;
        for (const TokenProb& candidate : means) {
            if (!(candidate.prob > settings.floor)) continue;
            prediction.means.push_back(candidate);
            const double estimate = values[table][bucket(candidate.prob)];
            prediction.estimates.push_back({candidate.token, estimate});
        }
        prediction.made = true;
    }

    // The same sum, with more of it where it is likely.
    TokenProbs sharpened(const TokenProbs& mixed) const {
        TokenProbs found = mixed;
        double before = 0, after = 0;
        for (TokenProb& each : found) {
            before += each.prob, each.prob = std::pow(each.prob, settings.sharpness);
            after += each.prob;
        }
        for (TokenProb& each : found) each.prob *= after > 0 ? before / after : 0;
        return found;
    }

    TokenProbs coupled(const TokenProbs& mixed, PlaceKey key) const {
        TokenProbs race_score = sharpened(mixed);
        double total = 0, known = 0;
        for (size_t from = 0; from < mixed.size(); from += LANES) {
            Words tokens{};
            const size_t end = std::min(mixed.size(), from + LANES);
            for (size_t i = from; i < end; i++) tokens[i - from] = mixed[i].token;
            Floats times = exponential_noise(tokens, key);
            for (size_t i = from; i < end; i++) {
                const double time = std::max<double>(times[i - from], settings.least_noise);
                race_score[i].prob /= time;
                total += race_score[i].prob;
                known += mixed[i].prob;
            }
        }
        total += std::max(0.0, 1.0 - known);
        for (TokenProb& candidate : race_score) candidate.prob /= total;
        return race_score;
    }

    void learn(Prediction& prediction, int32_t token) {
        const double* mean = find(prediction.mixed, token);
        if (mean && *mean > 0 && prediction.candidates.size() > 1)
            for (auto& said : prediction.candidates) {
                const double* held = find(said.probs, token);
                const double share = said.weight * (held ? *held : 0.0) / *mean;
                log_weight[said.evidence] += settings.rate * (share - said.weight);
            }
        const int table = prediction.table;
        for (const TokenProb& candidate : prediction.means) {
            const int at = bucket(candidate.prob);
            hits[table][at] = hits[table][at] * settings.decay + (candidate.token == token);
            trials[table][at] = trials[table][at] * settings.decay + 1.0;
            values[table][at] =
                (settings.strength * before[table][at] + hits[table][at]) /
                (settings.strength + trials[table][at]);
        }
    }
};

struct Node {
    int32_t token, parent, depth;
    double chance;
};

// One request.
struct Drafting {
    struct Member {
        std::unique_ptr<Source> source;
        std::vector<int32_t> evidence;  // numbers of its kinds
    };
    std::vector<Member> members;  // in the order in which they are asked
    std::vector<int32_t> names;  // of each kind of evidence: number of its source's name
    Estimates estimates;
    std::vector<AskingGains> gains;  // of each that takes its time
    Worth* worth = nullptr;  // of the source that may rest; there is at most one
    int worth_bit = -1;      // its number among those that take their time
    int32_t trees = 0;
    std::vector<Node> nodes;  // of the last tree, and what was considered besides
    std::vector<State> states;  // [nodes members]
    std::vector<Prediction> expected;  // by node
    Prediction open;  // of the token that is now drawn and not yet told
    // of the last tree: seconds of a step with so many draft tokens and least ones of a further one;
    // tokens a second, and seconds that the source was asked for that may rest
    std::vector<double> costs, slopes;
    double rate = 0, asking = 0;
    double least = 0;  // chance of a draft token that would have been run without that source
    std::vector<double> chances;  // of those that the others propose
    double company = 0;  // tokens that other texts were expected to emit beside it
    bool may_ask = false;  // it, in the tree under way
    bool lost = false;     // the token behind the tree before this one, for what it said

    explicit Drafting(const MergingSettings& settings) : estimates(settings) {
        for (int slow = 0; slow < settings.slow; slow++)
            gains.emplace_back(estimates.settings, slow);
    }
    Drafting(const Drafting&) = delete;

    void add_source(std::unique_ptr<Source> source, std::vector<int32_t> evidence) {
        if (Worth* found = source->worth()) worth = found, adopt(asked_ones());
        members.push_back({std::move(source), std::move(evidence)});
    }

    // Sources that take their time.
    int asked_ones() const {
        int found = 0;
        for (const Member& member : members) found += member.source->seconds() != nullptr;
        return found;
    }

    // Begin with what earlier texts showed of source `slow`.
    void adopt(int slow) {
        worth_bit = slow;
        worth->begin(gains[slow], &estimates.before[2 + 2 * slow]);
        for (int deep = 0; deep < 2; deep++) {
            const int table = 2 + 2 * slow + deep;
            estimates.before[table] = estimates.values[table] = worth->estimates(deep);
        }
    }

    // Returns the number of a further kind of evidence.
    int32_t add_evidence(double log_weight, int32_t name) {
        estimates.log_weight.push_back(log_weight);
        names.push_back(name);
        return names.size() - 1;
    }

    void append(int32_t parent, int32_t token, double chance) {
        const bool root = parent < 0;
        const size_t above = root ? 0 : parent * members.size();
        nodes.push_back({token, parent, root ? 0 : nodes[parent].depth + 1, chance});
        for (size_t i = 0; i < members.size(); i++) {
            const Source& source = *members[i].source;
            states.push_back(root ? source.begin(token) : source.advance(states[above + i], token));
        }
        expected.emplace_back();
    }

    void ask(const Member& member, size_t node, std::vector<Candidates>& candidates) const {
        CandidateList list{candidates, member.evidence};
        member.source->candidates(states[node * members.size() + (&member - &members[0])], list);
    }

    // What follows a node, from all sources that are worth their time there. A slow one is asked
    // at the root and, unless it goes anywhere, below a node at which it was.
    void predict(size_t place, const PlaceKey* noise, bool shared, double rate, double price) {
        Prediction& prediction = expected[place];
        const Node& node = nodes[place];
        const bool deep = node.depth > 0;
        const bool trial = !shared && trees % estimates.settings.asking_trial == 0;
        for (const Member& member : members)
            if (!member.source->seconds()) ask(member, place, prediction.candidates);
        estimates.predict(prediction, deep, noise);
        int slow = 0;
        for (const Member& member : members) {
            const double* seconds = member.source->seconds();
            if (!seconds) continue;
            AskingGains& gain = gains[slow];
            const uint64_t bit = (uint64_t)1 << slow++;
            const bool known = !deep || (expected[node.parent].asked & bit);
            if (!known && !member.source->anywhere()) continue;
            const double best = prediction.best();
            Worth* const shared_worth = slow - 1 == worth_bit ? worth : nullptr;
            if (shared_worth) {
                if (!may_ask || (!deep && !member.source->is_ready())) continue;
                if (!worth->pays(deep, trial, node.chance, best, price, rate, seconds[deep]))
                    continue;
                prediction.without = prediction.estimates, prediction.chance = node.chance;
                prediction.best_without = prediction.likeliest();
                asking += seconds[deep];
            } else if (!gain.pays(deep, trial, node.chance, best, price, rate, seconds[deep]))
                continue;
            prediction.asked |= bit;
            ask(member, place, prediction.candidates);
            estimates.predict(prediction, deep + 2 * slow, noise);
            const double stated = prediction.best() - best;
            if (shared_worth) prediction.stated = stated, worth->asked(deep, best, stated);
            else gain.learn(deep, best, stated);
        }
    }

    bool asked_worth(const Prediction& prediction) const {
        return worth && (prediction.asked >> worth_bit & 1);
    }

    // The text went on with a token where this was expected.
    void came(Prediction& prediction, int32_t token) {
        if (!prediction.made) return;
        estimates.learn(prediction, token);
        if (!asked_worth(prediction) || prediction.table / 2 != worth_bit + 1) return;
        const bool deep = prediction.table & 1;
        worth->judge(deep, prediction.stated,
                     (token == prediction.likeliest()) - (token == prediction.best_without));
        for (const TokenProb& candidate : prediction.means)
            worth->count_candidate(deep, estimates.bucket(candidate.prob), candidate.token == token);
    }

    // The least chance of `run` draft tokens of the other sources alone; no less than what such a
    // token costs.
    double least_without(int64_t run) {
        if (run < 1) return INFINITY;
        chances.clear();
        for (size_t place = 0; place < nodes.size(); place++) {
            const Prediction& each = expected[place];
            for (const TokenProb& candidate : asked_worth(each) ? each.without : each.estimates)
                chances.push_back(nodes[place].chance * candidate.prob);
        }
        const double price = rate * slopes[run - 1];
        if ((int64_t)chances.size() < run) return price;
        const auto last = chances.begin() + run - 1;
        std::nth_element(chances.begin(), last, chances.end(), std::greater<>());
        return std::max(price, *last * (1 - 1e-9));
    }

    // Whether this token has no node without the source that may rest.
    bool needs_worth(const Prediction& above, int32_t token) const {
        return asked_worth(above) && !holds(above.without, token, least / above.chance);
    }

    // The text went on behind the last tree.
    void came_behind(int32_t token) {
        came(open, token);
        const double enough = least / open.chance;
        lost = open.made && asked_worth(open) && holds(open.without, token, enough) &&
               !holds(open.estimates, token, enough);
    }

    // By how many nodes the run tree is larger than it would be without the source that may rest.
    int64_t nodes_for_worth(int64_t count) const {
        int64_t more = 0;
        std::vector<bool> needs(count);
        for (int64_t i = 0; i < count; i++) {
            const int64_t above = nodes[i].parent;
            needs[i] = i && (needs[above] || needs_worth(expected[above], nodes[i].token));
            more += needs[i] ? 1 : -displaced(i, count);
        }
        return std::max<int64_t>(0, more);
    }

    // Children of a node that the source took the place of.
    int64_t displaced(int64_t place, int64_t count) const {
        const Prediction& prediction = expected[place];
        int64_t found = 0;
        if (!asked_worth(prediction)) return found;
        for (const TokenProb& candidate : prediction.without) {
            const int64_t node = child(place, candidate.token);
            found += candidate.prob * prediction.chance > least && (node < 0 || node >= count);
        }
        return found;
    }

    // Count what the source that may rest brought by this tree, and the time of asking, of what it
    // reads, and of nodes that are there for it alone. `path`: nodes of the tree that was grown.
    void count_worth(const VerifiedTree& verified, const std::vector<int64_t>& path) {
        if (!may_ask || nodes.empty()) return worth->pass_step();
        const int64_t run = std::min<int64_t>(verified.nodes, nodes.size()) - 1;
        least = least_without(run);
        double tokens = -lost;
        for (size_t i = 0; i < path.size(); i++) {
            const Prediction& above = expected[path[i]];
            if (!needs_worth(above, verified.tokens[verified.path[i + 1]])) continue;
            tokens += verified.length - 1 - i;  // without it the path would have ended here
            break;
        }
        const double reading = worth->settings.reading * costs[0] / (1 + company);  // its part
        const double more = costs[run] - costs[run - std::min(run, nodes_for_worth(1 + run))];
        worth->count_step(tokens, rate * (asking + reading + more));
    }

    void clear() {
        nodes.clear();
        states.clear();
        expected.clear();
    }

    // Fill the tree until no further node could pay. The request's key and the number of the draw
    // that decides about the root's children are those of `place_key`; what lies below belongs to
    // the draws behind it. No path gets longer than `room`. `others`: tokens that other texts are
    // expected to emit in the same pass.
    void grow(int32_t root, const double* costs, const double* slopes, double others, bool noisy,
              uint64_t key, uint64_t place, int64_t room, int32_t threads) {
        came_behind(root);
        clear();
        may_ask = worth && worth->is_open(), asking = 0;
        for (Member& member : members) member.source->prepare({place, threads});
        struct Entry {  // a candidate below `place`, or, with token -1, this node to be expanded
            double chance;
            int64_t number;
            int32_t token, place;
            bool operator<(const Entry& other) const {  // the queue puts the largest first
                return chance != other.chance ? chance < other.chance : number > other.number;
            }
        };
        std::priority_queue<Entry> queue;
        auto add = [&](int32_t parent, int32_t token, double chance, int64_t& number) {
            append(parent, token, chance);
            number++;
            const double child = chance * estimates.settings.likeliest_child;
            if (nodes.back().depth < room)
                queue.push({child, number, -1, (int32_t)nodes.size() - 1});
        };
        int64_t number = 0;
        double yields = 1.0 + others, rate = yields / costs[0];
        trees++;
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
            const Node& node = nodes[next.place];
            const PlaceKey noise = place_key(key, place + node.depth);
            predict(next.place, noisy ? &noise : nullptr, others > 0, rate, rate * slopes[size - 1]);
            for (const TokenProb& candidate : expected[next.place].estimates)
                queue.push({node.chance * candidate.prob, ++number, candidate.token, next.place});
        }
        this->costs.assign(costs, costs + nodes.size());
        this->slopes.assign(slopes, slopes + nodes.size());
        this->rate = rate, company = others;
    }

    // Bits of the names under which a node was proposed.
    uint64_t proposers(const Node& node) const {
        uint64_t bits = 0;
        for (const Candidates& said : expected[node.parent].candidates)
            for (const TokenProb& candidate : said.probs)
                if (candidate.token == node.token) bits |= (uint64_t)1 << names[said.evidence];
        return bits;
    }

    // Seconds that sources took which take their time, since this was asked last.
    double spent() {
        double seconds = 0;
        for (Member& member : members) seconds += member.source->spent();
        return seconds;
    }

    // The node with this token below another, -1 where there is none: what was run may have other
    // numbers.
    int64_t child(int64_t parent, int32_t token) const {
        for (size_t i = parent + 1; i < nodes.size(); i++)
            if (nodes[i].parent == parent && nodes[i].token == token) return i;
        return -1;
    }

    void learn(const VerifiedTree& verified) {
        std::vector<int64_t> path;
        int64_t node = nodes.empty() ? -1 : 0;
        for (int64_t i = 1; i < verified.length && node >= 0; i++) {
            const int32_t token = verified.tokens[verified.path[i]];
            path.push_back(node);
            came(expected[node], token);
            node = child(node, token);
        }
        if (worth) count_worth(verified, path);
        open = node >= 0 ? std::move(expected[node]) : Prediction{};
        clear();
        for (Member& member : members) member.source->learn(verified);
    }
};

}  // namespace draftwood
