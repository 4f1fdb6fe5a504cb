// What the target says after a single token: sources/bigram_prior.py.
#include "../source.h"

namespace draftwood {

// CBigramPriorSettings of sources/bigram_prior.py.
struct BigramPriorSettings {
    const int32_t* rows;    // [known], of each token in the tables, -1 where it has none
    const int32_t* tokens;  // [rows ranks], -1 where there is none
    const float* probs;
    int64_t known, ranks;
};

struct BigramPriorSource : Source {
    static constexpr const char* KIND = "bigram-prior";
    using Settings = BigramPriorSettings;
    using Shared = Nothing;

    const Settings settings;

    BigramPriorSource(const Settings& settings, Shared*) : settings(settings) {}

    void learn(const VerifiedTree&) override {}

    State begin(int32_t root) const override { return State::of(root); }

    State advance(const State&, int32_t token) const override { return State::of(token); }

    void candidates(const State& state, CandidateList& list) const override {
        const int32_t token = state.as<int32_t>();
        if (token >= settings.known || settings.rows[token] < 0) return;
        TokenProbs probs;
        for (int64_t rank = 0; rank < settings.ranks; rank++) {
            const int64_t place = settings.rows[token] * settings.ranks + rank;
            if (settings.tokens[place] >= 0)
                probs.push_back({settings.tokens[place], settings.probs[place]});
        }
        if (!probs.empty()) list.add(0, std::move(probs));
    }
};

[[maybe_unused]] const bool registered = register_source<BigramPriorSource>();

}  // namespace draftwood
