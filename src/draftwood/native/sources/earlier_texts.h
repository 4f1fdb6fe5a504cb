// What followed the newest tokens in texts of earlier requests: sources/earlier_texts.py.
#pragma once

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
    struct Text {
        std::shared_ptr<Tokens> tokens;  // they grow while their request runs
        size_t read;  // how much of them is in the automaton
    };
    const EarlierTextsSettings settings;
    std::mutex reading;  // several requests may share the memory
    std::shared_ptr<SuffixAutomaton> automaton;
    std::vector<Text> texts;

    explicit TextMemory(const EarlierTextsSettings& settings)
        : settings(settings), automaton(std::make_shared<SuffixAutomaton>(settings.match)) {}

    // Take in what was written since the last call; returns an empty text for one more request to
    // write to. `automaton` is then the one for it to read. The caller holds the lock.
    std::shared_ptr<Tokens> open() {
        for (Text& text : texts) take_in(text);
        if (automaton->length > settings.max_tokens) forget();
        texts.push_back({std::make_shared<Tokens>(), 0});
        return texts.back().tokens;
    }

    void take_in(Text& text) {
        if (text.read == text.tokens->size()) return;
        while (text.read < text.tokens->size()) automaton->append((*text.tokens)[text.read++]);
        automaton->append(settings.match.separator);
    }

    // Build a new automaton of the newest texts; requests under way keep the old one.
    void forget() {
        size_t first = texts.size();
        int64_t tokens = 0;
        while (first > 0 &&
               tokens + (int64_t)texts[first - 1].tokens->size() <= settings.kept_tokens)
            tokens += texts[--first].tokens->size() + 1;
        texts.erase(texts.begin(), texts.begin() + first);
        automaton = std::make_shared<SuffixAutomaton>(settings.match);
        for (Text& text : texts) {
            text.read = 0;
            take_in(text);
        }
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

}  // namespace draftwood
