// A text that the answer may follow: sources/prediction.py.
#include "../source.h"

namespace draftwood {

// CPredictionSettings of sources/prediction.py.
struct PredictionSettings {
    const int32_t* tokens;  // [length] of the prediction
    const double* trust;    // [LEVELS] before evidence
    const int64_t* reach;   // [NEWEST] tokens within which a match of 1, 2, ... tokens counts
    // [3] tokens that became text, those that agree just now, and the one that would be next, -1
    // where the text is elsewhere
    int64_t* followed;
    double strength, decay, least;
    int64_t length;
    int32_t look_ahead, look_back;  // places of a token that are looked at
    int32_t start, sure, far, surest;
};

// Where the text is in the prediction.
struct Cursor {
    static constexpr int NEWEST = 3;

    int32_t place = 0;    // of the token that should come next
    int32_t anchor = 0;   // the last place that is sure
    int32_t matched = 0;  // tokens before `place` that agree; 0: the text is elsewhere
    int32_t newest[NEWEST] = {-1, -1, -1};
};

struct PredictionSource : Source {
    static constexpr const char* KIND = "prediction";
    static constexpr int LEVELS = 8, LOST = 0, START = 1;
    using Settings = PredictionSettings;
    using Shared = Nothing;

    PredictionSource(const Settings& settings, Shared*)
        : settings(settings), length(settings.length), places(length), followed(length) {
        for (int32_t place = 0; place < length; place++) places[place] = place;
        std::stable_sort(places.begin(), places.end(), [&](int32_t one, int32_t other) {
            return settings.tokens[one] < settings.tokens[other];
        });
    }

    void learn(const VerifiedTree& verified) override {
        if (!has_begun) return;  // that was the prompt
        for (int64_t i = 0; i < verified.length; i++) {
            const int32_t token = verified.tokens[verified.path[i]];
            judge(token);
            cursor = step(cursor, token);
            mark();
        }
        const bool goes_on = level_of(cursor) != LOST && cursor.place < length;
        settings.followed[1] = cursor.matched;
        settings.followed[2] = goes_on ? settings.tokens[cursor.place] : -1;
    }

    State begin(int32_t root) const override {
        has_begun = true;
        return State::of(step(cursor, root));
    }

    State advance(const State& state, int32_t token) const override {
        return State::of(step(state.as<Cursor>(), token));
    }

    void candidates(const State& state, CandidateList& list) const override {
        const Cursor at = state.as<Cursor>();
        const int level = level_of(at);
        const double chance = trusted(level);
        int32_t next[2];
        const int count = expected(at, next);
        if (!count || chance < settings.least) return;
        TokenProbs probs;
        for (int i = 0; i < count; i++) probs.push_back({next[i], chance / count});
        list.add(level, std::move(probs));
    }

private:
    const Settings settings;
    const int32_t length;
    std::vector<int32_t> places;  // of the prediction, by token
    std::vector<bool> followed;   // its tokens that became text
    Cursor cursor;                // before the root
    mutable bool has_begun = false;
    double hits[LEVELS] = {}, trials[LEVELS] = {};

    double trusted(int level) const {
        return (settings.strength * settings.trust[level] + hits[level]) /
               (settings.strength + trials[level]);
    }

    static int level_of(const Cursor& at) {
        if (!at.matched) return at.anchor ? LOST : START;
        const int32_t last[] = {1, 2, 3, 7, 15};
        int level = START + 1;
        for (int32_t most : last) level += at.matched > most;
        return level;
    }

    // Tokens that may come next. Behind a departure something may have been put in, or in the place
    // of one token.
    int expected(const Cursor& at, int32_t* next) const {
        int count = 0;
        if (at.place < length) next[count++] = settings.tokens[at.place];
        if (level_of(at) == LOST && at.place + 1 < length &&
            settings.tokens[at.place + 1] != next[0])
            next[count++] = settings.tokens[at.place + 1];
        return count;
    }

    void judge(int32_t token) {
        int32_t next[2];
        const int count = expected(cursor, next);
        if (!count) return;
        const int level = level_of(cursor);
        const bool came = std::find(next, next + count, token) != next + count;
        hits[level] = hits[level] * settings.decay + came;
        trials[level] = trials[level] * settings.decay + 1;
    }

    void mark() {
        if (cursor.matched < 2) return;  // one token agrees anywhere
        const int32_t first = std::max(0, cursor.place - std::min(cursor.matched, Cursor::NEWEST));
        for (int32_t place = first; place < cursor.place; place++) {
            settings.followed[0] += !followed[place];
            followed[place] = true;
        }
    }

    Cursor step(Cursor at, int32_t token) const {
        for (int i = Cursor::NEWEST - 1; i > 0; i--) at.newest[i] = at.newest[i - 1];
        at.newest[0] = token;
        const bool follows = level_of(at) != LOST && at.place < length &&
                             settings.tokens[at.place] == token;
        if (!follows) return found(at);
        at.matched = at.matched ? std::min(at.matched + 1, settings.surest) : settings.start;
        at.place++;
        const int32_t away = std::abs(at.place - at.anchor);
        if (at.matched >= std::min(settings.surest, settings.sure + away / settings.far))
            at.anchor = at.place;
        return at;
    }

    // The longest match of the newest tokens, and of equal ones the nearest.
    Cursor found(Cursor at) const {
        const int32_t token = at.newest[0];
        const auto less = [&](int32_t place, int32_t value) {
            return settings.tokens[place] < value;
        };
        const auto first = std::lower_bound(places.begin(), places.end(), token, less),
                   end = std::lower_bound(first, places.end(), token + 1, less),
                   here = std::lower_bound(first, end, at.anchor - 1);
        const auto from = here - std::min<int64_t>(here - first, settings.look_back),
                   to = here + std::min<int64_t>(end - here, settings.look_ahead);
        int64_t best = 0, nearest = 0;
        int32_t behind = at.anchor;
        for (auto each = from; each != to; each++) {
            const int32_t place = *each + 1;
            const int64_t matched = agreeing(at, *each),
                          away = place < at.anchor ? 2 * (at.anchor - place) : place - at.anchor;
            if (away > settings.reach[matched - 1]) continue;
            if (matched > best || (matched == best && away < nearest))
                best = matched, nearest = away, behind = place;
        }
        at.place = behind, at.matched = (int32_t)best;
        return at;
    }

    // How many of the newest tokens end at a place, which has the last of them.
    int32_t agreeing(const Cursor& at, int32_t place) const {
        int32_t count = 1;
        while (count < Cursor::NEWEST && count <= place &&
               settings.tokens[place - count] == at.newest[count])
            count++;
        return count;
    }
};

[[maybe_unused]] const bool registered = register_source<PredictionSource>();

}  // namespace draftwood
