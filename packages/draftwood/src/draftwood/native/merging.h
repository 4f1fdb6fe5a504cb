// Candidates of several sources merged in one tree: sources/acceptance.py has the numbers, and the
// references of the tests, merger.py and estimates.py, do the same in Python.
#pragma once

#include <memory>
#include <queue>

#include "noise.h"
#include "source.h"

namespace draftwood {

// What was expected after one text.
struct Prediction {
    std::vector<Candidates> candidates;
    TokenProbs mixed, means, estimates;
    bool made = false;
    uint64_t asked = 0;  // a bit for each source that takes its time and spoke
    int table = 0;       // of the estimates

    double best() const {
        double found = 0;
        for (const TokenProb& candidate : estimates) found = std::max(found, candidate.prob);
        return found;
    }
};

// CMergingSettings of drafting.py.
struct MergingSettings {
    const double* before_evidence;  // [2 + 2 slow][buckets]
    const int32_t* bucket_of;  // of each of `steps` equal parts of 0..1
    const double *asking_gain, *asking_reach;  // [slow]; see SlowPrior of acceptance.py
    int32_t buckets, steps;
    double rate, strength, decay, floor;
    double least_noise;  // smaller exponential numbers count as this
    double likeliest_child;  // a node is expanded as if its best child had this estimate
    double asking_strength, asking_decay;  // see Asking of acceptance.py
    int32_t asking_trial;
    int32_t slow;  // sources that take their time
};

struct Estimates {
    const MergingSettings settings;
    std::vector<double> log_weight;  // of each kind of evidence
    // of root and deeper nodes, and again of both for each source that takes its time and spoke last
    std::vector<std::vector<double>> values, hits, trials;

    explicit Estimates(const MergingSettings& settings) : settings(settings) {
        for (int table = 0; table < 2 * (1 + settings.slow); table++) {
            const double* before = settings.before_evidence + table * settings.buckets;
            values.emplace_back(before, before + settings.buckets);
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

    TokenProbs coupled(const TokenProbs& mixed, PlaceKey key) const {
        TokenProbs race_score = mixed;
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
                (settings.strength * settings.before_evidence[table * settings.buckets + at] +
                 hits[table][at]) /
                (settings.strength + trials[table][at]);
        }
    }
};

// What a source that takes its time adds to the best estimate, by what the others promise:
// Asking of acceptance.py.
struct AskingGains {
    const MergingSettings& settings;
    double before_evidence, reach;
    std::vector<double> sums[2], trials[2];

    AskingGains(const MergingSettings& settings, int source)
        : settings(settings),
          before_evidence(settings.asking_gain[source]),
          reach(settings.asking_reach[source]) {
        for (int deep = 0; deep < 2; deep++) {
            sums[deep].assign(settings.buckets, 0);
            trials[deep].assign(settings.buckets, 0);
        }
    }

    int bucket(double best) const {
        return settings.bucket_of[(int)std::min(settings.steps - 1.0, best * settings.steps)];
    }

    double gain(bool deep, double best) const {
        const int at = bucket(best);
        const double before = before_evidence * (1 - best);
        return (settings.asking_strength * before + sums[deep][at]) /
               (settings.asking_strength + trials[deep][at]);
    }

    void learn(bool deep, double best, double more) {
        const int at = bucket(best);
        sums[deep][at] = sums[deep][at] * settings.asking_decay + more;
        trials[deep][at] = trials[deep][at] * settings.asking_decay + 1;
    }

    // `trial`: whether it is asked in any case; other texts that share the pass do not wait for one.
    // `price`: tokens that a further node costs; `rate`: tokens a second so far; `seconds`: of
    // asking.
    bool pays(bool deep, bool trial, double chance, double best, double price, double rate,
              double seconds) const {
        if (!deep && trial) return true;
        const double before = std::max(0.0, chance * best - price),
                     after = std::max(0.0, chance * (best + gain(deep, best)) - price);
        return reach * (after - before) > rate * seconds;
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
    int32_t trees = 0;
    std::vector<Node> nodes;  // of the last tree, and what was considered besides
    std::vector<State> states;  // [nodes members]
    std::vector<Prediction> expected;  // by node
    Prediction open;  // of the token that is now drawn and not yet told

    explicit Drafting(const MergingSettings& settings) : estimates(settings) {
        for (int slow = 0; slow < settings.slow; slow++)
            gains.emplace_back(estimates.settings, slow);
    }
    Drafting(const Drafting&) = delete;

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
            if (!gain.pays(deep, trial, node.chance, best, price, rate, seconds[deep])) continue;
            prediction.asked |= bit;
            ask(member, place, prediction.candidates);
            estimates.predict(prediction, deep + 2 * slow, noise);
            gain.learn(deep, best, prediction.best() - best);
        }
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
        if (open.made) estimates.learn(open, root);
        clear();
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
        int64_t node = nodes.empty() ? -1 : 0;
        for (int64_t i = 1; i < verified.length && node >= 0; i++) {
            const int32_t token = verified.tokens[verified.path[i]];
            if (expected[node].made) estimates.learn(expected[node], token);
            node = child(node, token);
        }
        open = node >= 0 ? std::move(expected[node]) : Prediction{};
        clear();
        for (Member& member : members) member.source->learn(verified);
    }
};

}  // namespace draftwood
