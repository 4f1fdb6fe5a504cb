// What merging.h asks of a source. Each file in sources/ holds one, registers it, and stands for the
// Python file of the same name, which says what it does and why; a session in tests/reference gives
// the same trees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace draftwood {

struct Worth;

struct TokenProb {
    int32_t token;
    double prob;
};

using TokenProbs = std::vector<TokenProb>;

inline double* find(TokenProbs& probs, int32_t token) {
    for (TokenProb& candidate : probs)
        if (candidate.token == token) return &candidate.prob;
    return nullptr;
}

inline void keep_topk(TokenProbs& probs, size_t count) {
    if (probs.size() <= count) return;
    std::stable_sort(probs.begin(), probs.end(),
                     [](const TokenProb& a, const TokenProb& b) { return a.prob > b.prob; });
    probs.resize(count);
}

// What a forward pass of the target said.
struct VerifiedTree {
    const int64_t *tokens, *parents;  // [nodes]; a parent comes before its children, -1: the root
    int64_t nodes;
    const int64_t* path;  // [length] nodes that are now text
    int64_t length;
    const int64_t* successors;  // [nodes ranks] the likeliest next tokens; null: not to be read
    const float* probs;
    int64_t ranks;
    const float* const* hidden;  // of the target's layers, each null or [nodes hidden]; null: none
    const float* logits = nullptr;  // [nodes vocabulary]; null: not to be read
};

// What a source that takes its time needs to know of the tree that is about to grow.
struct Growing {
    uint64_t place;  // of the draw that decides about the root's children
    int32_t threads;
};

// What one kind of evidence says. Kinds are numbered over all sources.
struct Candidates {
    int32_t evidence;
    double weight;
    TokenProbs probs;
};

// Takes what one source holds likely.
struct CandidateList {
    std::vector<Candidates>& all;
    const std::vector<int32_t>& evidence;  // numbers of the source's own kinds

    void add(int kind, TokenProbs probs) { add_numbered(evidence[kind], std::move(probs)); }

    void add_numbered(int32_t number, TokenProbs probs) {
        all.push_back({number, 0.0, std::move(probs)});
    }
};

// What a source needs to know of a text: any structure of at most three words.
struct State {
    uint64_t words[3];

    template <typename T>
    static State of(const T& value) {
        static_assert(sizeof(T) <= sizeof(State), "a state must fit in three words");
        State state{};
        std::memcpy(state.words, &value, sizeof(T));
        return state;
    }

    template <typename T>
    T as() const {
        T value;
        std::memcpy((void*)&value, words, sizeof(T));
        return value;
    }
};

// A source's part in one request. Each also has
// - `KIND`, its name for Python;
// - `Settings`, all its numbers, as Python hands them over;
// - `Shared`, what requests share, made of the settings;
// - a constructor of settings and what is shared.
struct Source {
    virtual ~Source() = default;
    virtual void learn(const VerifiedTree& verified) = 0;
    virtual State begin(int32_t root) const = 0;
    virtual State advance(const State& state, int32_t token) const = 0;
    virtual void candidates(const State& state, CandidateList& list) const = 0;

    // Only of sources that take their time: [2] seconds of asking at the root and deeper, whether
    // they may be asked below nodes at which they were not, and the seconds that answers took since
    // this was asked last.
    virtual const double* seconds() const { return nullptr; }
    virtual bool anywhere() const { return false; }
    virtual double spent() { return 0; }
    virtual void prepare(const Growing&) {}
    virtual bool is_ready() const { return true; }  // to be asked at the root

    // Of a source that all texts leave alone while it is worth nothing; see worth.h.
    virtual Worth* worth() const { return nullptr; }
};

// `Shared` of sources whose requests share nothing.
struct Nothing {
    template <typename Settings>
    explicit Nothing(const Settings&) {}
};

// A kind of source, as Python may ask for it by name.
struct SourceKind {
    const char* name;
    int64_t settings_size;
    void* (*share)(const void* settings);
    void (*unshare)(void* shared);
    Source* (*make)(const void* settings, void* shared);
};

std::vector<SourceKind>& source_kinds();

// Each file of a source calls it once, for a constant of its own.
template <typename T>
bool register_source() {
    using Settings = typename T::Settings;
    using Shared = typename T::Shared;
    source_kinds().push_back({
        T::KIND,
        sizeof(Settings),
        [](const void* settings) -> void* { return new Shared(*(const Settings*)settings); },
        [](void* shared) { delete (Shared*)shared; },
        [](const void* settings, void* shared) -> Source* {
            return new T(*(const Settings*)settings, (Shared*)shared);
        },
    });
    return true;
}

}  // namespace draftwood
