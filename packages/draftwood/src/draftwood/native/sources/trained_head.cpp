// What an EAGLE head holds likely, asked where its time pays: sources/trained_head.py.
#include <chrono>

#include "../late_rows.h"
#include "../worth.h"

namespace draftwood {

// CTrainedHeadSettings of trained_head.py.
struct TrainedHeadSettings {
    HeadSession* session;
    Successors* found;      // where its answers lie
    const int32_t* layers;  // [reads] of the target, whose inputs the head reads
    const uint8_t* known;   // [target's vocabulary]: whether a token is in the draft vocabulary
    int64_t width;          // of a hidden state
    int32_t reads, levels, usual_rows;
    int32_t newest;    // rows that are taken in at once; what is older is left out
    int32_t is_timed;  // else the seconds stay as they are
    double inside, forgetting, row_seconds, seconds[2];
    WorthSettings worth;
};

// What requests share: what the head was worth to them, and what asking takes.
struct SharedWorth : Worth {
    explicit SharedWorth(const TrainedHeadSettings& settings)
        : Worth(settings.worth, settings.seconds) {}
};

struct TrainedHeadSource : Source {
    static constexpr const char* KIND = "trained-head";
    using Settings = TrainedHeadSettings;
    using Shared = SharedWorth;

    // `shared`: null for a text that knows of no other.
    TrainedHeadSource(const Settings& settings, Shared* shared)
        : settings(settings),
          shared(shared),
          late(settings.layers, settings.reads, settings.width),
          inside(settings.inside),
          step_seconds(settings.seconds[0]) {
        asking[0] = settings.seconds[0], asking[1] = settings.seconds[1];
        if (shared) shared->seconds(asking), step_seconds = asking[0];
    }

    void learn(const VerifiedTree& verified) override {
        if (!has_states(verified)) return late.forget(late.count());  // nothing was computed
        for (int64_t i = 0; i < verified.length; i++) {
            const int64_t token = verified.tokens[verified.path[i]];
            inside += 0.01 * ((double)settings.known[token] - inside);
        }
        late.add(verified, settings.newest);
        asking[0] = step_seconds + settings.row_seconds * late.count();
    }

    void prepare(const Growing& tree) override { growing = tree; }

    State begin(int32_t root) const override {
        rows.assign(1, -1);
        return State::of(Node{0, -1, root, 0});
    }

    State advance(const State& state, int32_t token) const override {
        const Node above = state.as<Node>();
        rows.push_back(-1);
        return State::of(Node{(int32_t)rows.size() - 1, above.number, token, above.depth + 1});
    }

    void candidates(const State& state, CandidateList& list) const override {
        const auto since = std::chrono::steady_clock::now();
        const Node node = state.as<Node>();
        const int32_t odd = node.parent < 0 ? take_in(node.token) : read(node);
        if (odd >= 0) return;
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - since;
        count(node.depth > 0, taken.count());
        const Successors& found = *settings.found;
        if (std::isnan(found.log_probs[0])) return;  // of a broken head, or of broken states
        TokenProbs probs;
        for (int i = 0; i < found.ranks; i++)
            probs.push_back({(int32_t)found.tokens[i], inside * std::exp(found.log_probs[i])});
        list.add(std::min(node.depth, settings.levels - 1), std::move(probs));
    }

    const double* seconds() const override { return asking; }

    bool is_ready() const override { return late.count() > 0; }

    Worth* worth() const override { return shared; }

    double spent() override {
        const double taken = answering;
        answering = 0;
        return taken;
    }

private:
    struct Node {
        int32_t number, parent, token, depth;
    };

    const Settings settings;
    Shared* const shared;
    mutable LateRows late;
    mutable std::vector<int32_t> rows;  // of the head, by node of the tree that grows now
    mutable int32_t drafted = 0;        // rows since the last one was taken in
    double inside;                      // share of the target's tokens in the draft vocabulary
    mutable double step_seconds, asking[2], answering = 0;
    mutable int64_t taken = 0;  // rows with the last question at a root
    Growing growing{0, 1};

    bool has_states(const VerifiedTree& verified) const {
        if (!verified.hidden) return false;
        for (int32_t read = 0; read < settings.reads; read++)
            if (!verified.hidden[settings.layers[read]]) return false;
        return true;
    }

    // All rows whose next token is known.
    int32_t take_in(int32_t root) const {
        taken = late.count();
        if (!taken) return 0;
        drafted = 0;
        settings.found->place = growing.place;
        return late.take(root, [&](const FusionInput& fused, const int64_t* tokens, int64_t count) {
            return head_take(*settings.session, fused, tokens, count, *settings.found,
                             growing.threads);
        });
    }

    int32_t read(const Node& node) const {
        const int64_t parent = rows[node.parent], token = node.token;
        rows[node.number] = drafted++;
        return head_level(*settings.session, &parent, &token, 1, *settings.found, growing.threads);
    }

    void count(bool is_deep, double seconds) const {
        const bool is_usual = taken <= settings.usual_rows;  // a prompt says little of a step
        if (!settings.is_timed) return;
        if (is_usual) answering += seconds;
        const double share = 1 - settings.forgetting;
        if (is_deep) asking[1] += share * (seconds - asking[1]);
        else if (is_usual)
            step_seconds += share * (seconds - settings.row_seconds * taken - step_seconds);
        if (shared) shared->timed(is_deep, is_deep ? asking[1] : step_seconds);
    }
};

[[maybe_unused]] const bool registered = register_source<TrainedHeadSource>();

}  // namespace draftwood
