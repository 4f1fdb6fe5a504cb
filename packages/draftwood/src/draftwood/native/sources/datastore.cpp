// What followed the newest tokens in texts of a file: sources/datastore.py, token_index.py.
#include "../automaton.h"

namespace draftwood {

// CDatastoreSettings of sources/datastore.py.
struct DatastoreSettings {
    const int32_t *starts, *rows, *following;  // of TokenIndex
    const uint8_t* shared;
    int32_t tokens, vocab_size;
    int32_t sampled;  // places of a match that are counted at most
    MatchSettings match;
};

// The rows of all places behind which the newest tokens of a text stand.
struct PlaceRange {
    int32_t first, end, matched, last;
};

// TokenIndex of token_index.py.
struct TokenIndex {
    static constexpr int32_t BLOCK = 64;  // rows that are looked at together
    const DatastoreSettings& from;

    PlaceRange whole() const { return {0, from.tokens, 0, from.match.separator}; }

    PlaceRange behind(int32_t token) const {
        return {from.starts[token + 1], from.starts[token + 2], 1, token};
    }

    PlaceRange step(PlaceRange match, int32_t token) const {
        if (token < 0 || token >= from.vocab_size) return whole();
        const PlaceRange all = behind(token);
        if (all.first == all.end) return whole();
        const int32_t* const low = from.rows + all.first;
        const int32_t* const high = from.rows + all.end;
        const int32_t* place = std::lower_bound(low, high, match.first);
        while ((place == high || *place >= match.end) && (place == low || place[-1] < match.first))
            match = wider(match);
        const int32_t first = std::lower_bound(low, place, match.first) - from.rows,
                      end = std::lower_bound(place, high, match.end) - from.rows;
        const int32_t deepest = from.match.deepest;
        if (match.matched >= deepest) return spread({first, end, deepest, token});
        return {first, end, match.matched + 1, token};
    }

    // The least range of fewer tokens.
    PlaceRange wider(const PlaceRange& match) const {
        const int32_t below = match.end < from.tokens ? from.shared[match.end] : 0;
        const int32_t matched = std::max<int32_t>(from.shared[match.first], below);
        if (matched == 0) return whole();
        if (matched == 1) return behind(match.last);
        return spread({match.first, match.end, matched, match.last});
    }

    // All rows around that share as much.
    PlaceRange spread(PlaceRange range) const {
        const int32_t least = range.matched;
        while (range.first >= BLOCK && all_share(range.first - BLOCK + 1, least))
            range.first -= BLOCK;
        while (from.shared[range.first] >= least) range.first--;
        while (range.end + BLOCK <= from.tokens && all_share(range.end, least)) range.end += BLOCK;
        while (range.end < from.tokens && from.shared[range.end] >= least) range.end++;
        return range;
    }

    bool all_share(int32_t row, int32_t least) const {
        uint8_t fewest = 255;
        for (int32_t i = 0; i < BLOCK; i++) fewest = std::min(fewest, from.shared[row + i]);
        return fewest >= least;
    }
};

struct DatastoreSource : Source {
    static constexpr const char* KIND = "datastore";
    using Settings = DatastoreSettings;
    using Shared = Nothing;

    const Settings settings;
    const TokenIndex index;
    PlaceRange match;

    DatastoreSource(const Settings& given, Shared*)
        : settings(given), index{settings}, match(index.whole()) {}

    void learn(const VerifiedTree& verified) override {
        const int64_t deepest = settings.match.deepest;  // no match begins before
        for (int64_t i = std::max<int64_t>(0, verified.length - deepest); i < verified.length; i++)
            match = index.step(match, verified.tokens[verified.path[i]]);
    }

    State begin(int32_t root) const override { return State::of(index.step(match, root)); }

    State advance(const State& state, int32_t token) const override {
        return State::of(index.step(state.as<PlaceRange>(), token));
    }

    void candidates(const State& state, CandidateList& list) const override {
        const PlaceRange range = state.as<PlaceRange>();
        const MatchSettings& of = settings.match;
        if (range.matched < of.shortest) return;
        const int64_t count = range.end - range.first,
                      step = (count + settings.sampled - 1) / settings.sampled;
        TokenProbs probs;
        double total = of.unseen;
        for (int64_t row = range.first; row < range.end; row += step) {
            const int32_t token = settings.following[row];
            if (double* known = find(probs, token)) *known += 1;
            else probs.push_back({token, 1});
            if (probs.size() > (size_t)of.varied) return;
            total += token != of.separator;
        }
        probs.erase(std::remove_if(probs.begin(), probs.end(),
                                   [&](auto& each) { return each.token == of.separator; }),
                    probs.end());
        if (probs.empty()) return;
        keep_topk(probs, of.widest);
        for (TokenProb& candidate : probs) candidate.prob /= total;
        list.add(std::min(range.matched, of.longest), std::move(probs));
    }
};

[[maybe_unused]] const bool registered = register_source<DatastoreSource>();

}  // namespace draftwood
