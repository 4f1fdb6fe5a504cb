// What followed the newest token where the target was in a like state: sources/nearest_state.py.
#include <array>
#include <cmath>
#include <unordered_map>

#include "../source.h"

namespace draftwood {

// CNearestStateSettings of sources/nearest_state.py.
struct NearestStateSettings {
    double unseen, halving;
    int64_t width;
    int32_t layer, strengths, nearest, matched, worth, least, widest;
};

struct NearestStateSource : Source {
    static constexpr const char* KIND = "nearest-state";
    static constexpr int BITS = 256;
    using Settings = NearestStateSettings;
    using Shared = Nothing;
    using Sketch = std::array<uint64_t, BITS / 64>;

    NearestStateSource(const Settings& settings, Shared*)
        : settings(settings), bits(std::min<int64_t>(BITS, settings.width)) {}

    void learn(const VerifiedTree& verified) override {
        const float* states = verified.hidden ? verified.hidden[settings.layer] : nullptr;
        if (states && mean.empty()) measure(states, verified);
        for (int64_t i = 0; i < verified.length; i++) {
            const int64_t node = verified.path[i];
            const int32_t token = verified.tokens[node], place = text.size();
            auto [known, is_new] = newest.try_emplace(token, place);
            earlier.push_back(is_new ? -1 : known->second);
            known->second = place;
            text.push_back(token);
            is_known.push_back(states != nullptr);
            sketches.push_back(states ? sketched(states + node * settings.width) : Sketch{});
        }
    }

    State begin(int32_t root) const override {
        followed.clear();
        std::vector<Agreeing> found;
        auto known = newest.find(root);
        if (!text.empty() && is_known.back() && known != newest.end()) {
            int32_t place = known->second, best = 0;
            for (int32_t i = 0; i < settings.nearest && place >= 0; i++, place = earlier[place]) {
                if (place == 0 || !is_known[place - 1]) continue;
                const int32_t same = agreed(sketches[place - 1], sketches.back());
                found.push_back({place, same + settings.worth * matched(place)});
                best = std::max(best, found.back().agreed);
            }
            const int32_t least = best - settings.least;
            found.erase(std::remove_if(found.begin(), found.end(),
                                       [&](const Agreeing& each) { return each.agreed < least; }),
                        found.end());
            std::reverse(found.begin(), found.end());
        }
        return keep(std::move(found));
    }

    State advance(const State& state, int32_t token) const override {
        std::vector<Agreeing> found;
        for (const Agreeing& each : followed[state.as<int32_t>()])
            if (has_next(each) && text[each.place + 1] == token)
                found.push_back({each.place + 1, each.agreed});
        return keep(std::move(found));
    }

    void candidates(const State& state, CandidateList& list) const override {
        const auto& places = followed[state.as<int32_t>()];
        int32_t best = 0;
        for (const Agreeing& each : places) best = std::max(best, each.agreed);
        TokenProbs probs;
        double total = 0;
        for (const Agreeing& each : places) {
            if (!has_next(each)) continue;
            const double weight = std::exp2((each.agreed - best) / settings.halving);
            const int32_t token = text[each.place + 1];
            if (double* known = find(probs, token)) *known += weight;
            else probs.push_back({token, weight});
        }
        if (probs.empty()) return;
        for (const TokenProb& each : probs) total += each.prob;
        total += settings.unseen;
        keep_topk(probs, settings.widest);
        for (TokenProb& each : probs) each.prob /= total;
        const int32_t above = std::max(0, 2 * best - bits);
        const int32_t strength = above * settings.strengths / bits;
        list.add(std::min(settings.strengths - 1, strength), std::move(probs));
    }

private:
    struct Agreeing {
        int32_t place, agreed;  // bits
    };

    const Settings settings;
    const int32_t bits;
    std::vector<double> mean;  // [bits] over the prompt
    std::vector<int32_t> text, earlier;  // `earlier`: the same token's place before, -1 for none
    std::vector<Sketch> sketches;        // of the states at each token
    std::vector<bool> is_known;
    std::unordered_map<int32_t, int32_t> newest;  // place of each token
    mutable std::vector<std::vector<Agreeing>> followed;  // by node of the tree that grows now

    State keep(std::vector<Agreeing> found) const {
        followed.push_back(std::move(found));
        return State::of((int32_t)followed.size() - 1);
    }

    bool has_next(const Agreeing& each) const { return each.place + 1 < (int32_t)text.size(); }

    int64_t dimension(int32_t bit) const { return bit * settings.width / bits; }

    void measure(const float* states, const VerifiedTree& verified) {
        mean.assign(bits, 0.0);
        for (int64_t i = 0; i < verified.length; i++)
            for (int32_t bit = 0; bit < bits; bit++)
                mean[bit] += states[verified.path[i] * settings.width + dimension(bit)];
        for (double& each : mean) each /= verified.length;
    }

    Sketch sketched(const float* state) const {
        Sketch sketch{};
        for (int32_t bit = 0; bit < bits; bit++)
            sketch[bit / 64] |= (uint64_t)(state[dimension(bit)] > mean[bit]) << (bit % 64);
        return sketch;
    }

    // Tokens before a place that also stand before the root.
    int32_t matched(int32_t place) const {
        const int32_t end = text.size(), most = std::min(settings.matched, place);
        int32_t count = 0;
        while (count < most && text[place - 1 - count] == text[end - 1 - count]) count++;
        return count;
    }

    int32_t agreed(const Sketch& one, const Sketch& other) const {
        int32_t apart = 0;
        for (size_t i = 0; i < one.size(); i++) apart += __builtin_popcountll(one[i] ^ other[i]);
        return bits - apart;
    }
};

[[maybe_unused]] const bool registered = register_source<NearestStateSource>();

}  // namespace draftwood
