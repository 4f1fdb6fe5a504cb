// What the target held likely after the same few tokens: sources/auto/n_grams.py.
#include <mutex>
#include <unordered_map>

#include "../noise.h"
#include "../source.h"

namespace draftwood {

// CNGramsSettings of sources/auto/n_grams.py.
struct NGramsSettings {
    double fresh;
    int64_t max_contexts, forgotten;
    int32_t order, widest;
};

// The newest tokens of a text, at most as many as the longest context.
struct Tail {
    static constexpr int MAX_ORDER = sizeof(State) / sizeof(int32_t) - 1;

    int32_t tokens[MAX_ORDER];
    int32_t length = 0;

    Tail and_then(int32_t token, int order) const {
        Tail next;
        const int from = std::max(0, length + 1 - order);
        for (int i = from; i < length; i++) next.tokens[next.length++] = tokens[i];
        next.tokens[next.length++] = token;
        return next;
    }

    // Stands for the last `count` tokens. Two contexts may share a number, once in 2^64, at the
    // cost of bad draft tokens.
    uint64_t context(int count) const {
        uint64_t number = count;
        for (int i = length - count; i < length; i++)
            number = mixed_up(number ^ (uint64_t)(uint32_t)tokens[i] << 8);
        return number;
    }
};

struct NGramTables {
    struct Row {
        TokenProbs probs;
        int64_t born;
    };
    const NGramsSettings settings;
    std::mutex reading;  // several requests may share the tables
    std::vector<std::unordered_map<uint64_t, Row>> tables;
    int64_t births = 0;

    explicit NGramTables(const NGramsSettings& settings)
        : settings(settings), tables(settings.order) {}

    void learn(const Tail& tail, const TokenProbs& row) {
        for (int length = 1; length <= tail.length; length++) {
            auto& table = tables[length - 1];
            auto [found, is_new] = table.try_emplace(tail.context(length));
            if (is_new) found->second.born = births++;
            if (is_new || settings.fresh == 1.0) found->second.probs = row;
            else average(found->second.probs, row);
            if ((int64_t)table.size() > settings.max_contexts) forget_oldest(table);
        }
    }

    const TokenProbs* row(const Tail& tail, int length) const {
        auto found = tables[length - 1].find(tail.context(length));
        return found == tables[length - 1].end() ? nullptr : &found->second.probs;
    }

    void average(TokenProbs& mean, const TokenProbs& row) const {
        const double fresh = settings.fresh;
        for (TokenProb& candidate : mean) candidate.prob *= 1.0 - fresh;
        for (const TokenProb& candidate : row) {
            if (double* known = find(mean, candidate.token)) *known += fresh * candidate.prob;
            else mean.push_back({candidate.token, fresh * candidate.prob});
        }
        keep_topk(mean, settings.widest);
    }

    void forget_oldest(std::unordered_map<uint64_t, Row>& table) const {
        std::vector<int64_t> ages;
        for (auto& entry : table) ages.push_back(entry.second.born);
        const int64_t count = std::min<int64_t>(settings.forgotten, ages.size());
        std::nth_element(ages.begin(), ages.begin() + count - 1, ages.end());
        const int64_t last = ages[count - 1];
        for (auto entry = table.begin(); entry != table.end();)
            entry = entry->second.born <= last ? table.erase(entry) : std::next(entry);
    }
};

struct NGramsSource : Source {
    static constexpr const char* KIND = "n-grams";
    using Settings = NGramsSettings;
    using Shared = NGramTables;

    const int order;
    NGramTables& tables;
    Tail tail;

    NGramsSource(const Settings& settings, Shared* tables)
        : order(settings.order), tables(*tables) {}

    void learn(const VerifiedTree& verified) override {
        if (!verified.successors) {
            for (int64_t i = 0; i < verified.length; i++)
                tail = tail.and_then(verified.tokens[verified.path[i]], order);
            return;
        }
        const int64_t ranks = verified.ranks;
        std::lock_guard<std::mutex> lock(tables.reading);
        std::vector<Tail> tails(verified.nodes);
        TokenProbs row(ranks);
        for (int64_t node = 0; node < verified.nodes; node++) {
            const int64_t parent = verified.parents[node];
            tails[node] =
                (parent < 0 ? tail : tails[parent]).and_then(verified.tokens[node], order);
            for (int64_t rank = 0; rank < ranks; rank++) {
                const int64_t place = node * ranks + rank;
                row[rank] = {(int32_t)verified.successors[place], verified.probs[place]};
            }
            tables.learn(tails[node], row);
        }
        tail = tails[verified.path[verified.length - 1]];
    }

    State begin(int32_t root) const override { return State::of(tail.and_then(root, order)); }

    State advance(const State& state, int32_t token) const override {
        return State::of(state.as<Tail>().and_then(token, order));
    }

    void candidates(const State& state, CandidateList& list) const override {
        const Tail tail = state.as<Tail>();
        std::lock_guard<std::mutex> lock(tables.reading);
        for (int length = tail.length; length > 0; length--)
            if (const TokenProbs* row = tables.row(tail, length)) list.add(length, *row);
    }
};

[[maybe_unused]] const bool registered = register_source<NGramsSource>();

}  // namespace draftwood

// Most tokens of context that n-grams can have.
extern "C" int32_t draftwood_max_order() { return draftwood::Tail::MAX_ORDER; }
