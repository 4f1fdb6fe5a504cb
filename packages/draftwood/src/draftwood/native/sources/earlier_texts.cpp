// What followed the newest tokens in texts of earlier requests: sources/earlier_texts.py.
#include <algorithm>
#include <memory>
#include <mutex>

#include "../automaton.h"

namespace draftwood {

// CEarlierTextsSettings of sources/earlier_texts.py.
struct EarlierTextsSettings {
    MatchSettings match;
    int64_t max_tokens;
    int64_t kept_tokens;  // once there were more than those
};

// Texts of requests in one automaton.
struct TextMemory {
    using Tokens = std::vector<int32_t>;
    const EarlierTextsSettings settings;
    std::mutex reading;  // several requests may share the memory
    std::shared_ptr<SuffixAutomaton> automaton, younger;
    std::vector<std::shared_ptr<Tokens>> news;  // of requests, not yet in the automaton

    explicit TextMemory(const EarlierTextsSettings& settings)
        : settings(settings), automaton(std::make_shared<SuffixAutomaton>(settings.match)) {}

    // Take in what was written since the last call; returns an empty text for one more request to
    // write to. `automaton` is then the one for it to read. The caller holds the lock.
    std::shared_ptr<Tokens> open() {
        for (auto& text : news) take_in(*text);
        news.erase(std::remove_if(news.begin(), news.end(),
                                  [](auto& text) { return text.use_count() == 1; }),
                   news.end());
        news.push_back(std::make_shared<Tokens>());
        return news.back();
    }

    // The younger one begins before the text that goes beyond what is kept, and so has all of it;
    // of a text longer than the memory the end is kept.
    void take_in(Tokens& text) {
        if (text.empty()) return;
        const int64_t count = std::min((int64_t)text.size(), settings.max_tokens - 1);
        if (!younger && automaton->length() + count > settings.max_tokens - settings.kept_tokens)
            younger = std::make_shared<SuffixAutomaton>(settings.match);
        for (SuffixAutomaton* each : {automaton.get(), younger.get()}) {
            if (!each) continue;
            for (auto token = text.end() - count; token != text.end(); token++)
                each->append(*token);
            each->append(settings.match.separator);
        }
        Tokens().swap(text);
        while (automaton->length() > settings.max_tokens) forget();
    }

    // Requests under way keep the old automaton.
    void forget() {
        automaton = younger ? younger : std::make_shared<SuffixAutomaton>(settings.match);
        younger.reset();
    }
};

struct EarlierTextsSource : Source {
    static constexpr const char* KIND = "earlier-texts";
    using Settings = EarlierTextsSettings;
    using Shared = TextMemory;

    const MatchSettings settings;
    std::mutex& reading;
    std::shared_ptr<TextMemory::Tokens> text;
    std::shared_ptr<SuffixAutomaton> automaton;
    Match match;

    EarlierTextsSource(const Settings& settings, Shared* memory)
        : settings(settings.match), reading(memory->reading) {
        std::lock_guard<std::mutex> lock(reading);
        text = memory->open();
        automaton = memory->automaton;
    }

    void learn(const VerifiedTree& verified) override {
        std::lock_guard<std::mutex> lock(reading);
        for (int64_t i = 0; i < verified.length; i++) {
            text->push_back(verified.tokens[verified.path[i]]);
            match = automaton->step(match, text->back());
        }
    }

    State begin(int32_t root) const override { return advance(State::of(match), root); }

    State advance(const State& state, int32_t token) const override {
        std::lock_guard<std::mutex> lock(reading);
        return State::of(automaton->step(state.as<Match>(), token));
    }

    void candidates(const State& state, CandidateList& list) const override {
        std::lock_guard<std::mutex> lock(reading);
        add_continuations(*automaton, state.as<Match>(), settings, list);
    }
};

[[maybe_unused]] const bool registered = register_source<EarlierTextsSource>();

}  // namespace draftwood
