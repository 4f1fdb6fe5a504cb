// A drafter's head at work on one sequence (EAGLE-3: Li et al. 2025, arXiv:2503.01840).
//
// Committed rows hold a state of the target and the token behind it. Drafted rows follow them, each
// with the state that its parent's row gave, and see their ancestors among these. The next rows of
// the target take their places. Rows are numbered from 0, and so are their positions: rotary
// embeddings look at distances alone. A head that reads tokens alone (a draft LM) has no states;
// its rows hold a token each.
#pragma once

#include "network.h"
#include "noise.h"

namespace draftwood {

struct Head {
    const Decoder* decoder;       // its vocabulary is the draft vocabulary
    int64_t layers;
    const int64_t* draft_tokens;  // [decoder's vocabulary]: their numbers in the target's
    int64_t target_vocabulary;
};

// Which successors of rows are wanted, and which were found, in numbers of the target's vocabulary.
struct Successors {
    int32_t ranks;        // of each row, at most HeadSession::MOST_RANKS
    int32_t is_drawn;     // whether the first in the race of the next draws are wanted (noise.h)
    float temperature;    // of the probabilities
    uint64_t key, place;  // of the request, and of the draw behind the newest token
    int64_t* tokens;      // [rows][ranks]
    float* log_probs;     // [rows][ranks]: under a softmax over the draft vocabulary
    const float* logits;  // found: [rows][draft vocabulary], until the next call
};

// A tree of drafts: how large it may be, and what it holds. Its first node is the root.
struct HeadTree {
    int32_t max_nodes, depth, width;  // without the root; levels; nodes of a level that are read
    float least_log_prob;             // of the paths to nodes that are read
    int64_t *tokens, *parents;  // [1 + max_nodes]
    float* log_probs;           // [1 + max_nodes]: of the whole path
    int32_t nodes;              // found, without the root
    int32_t is_broken;          // found: whether a row that was read said NaN
};

// The tokens of a row of logits that arrive first when each comes at its probability as rate; see
// gumbel_argmax. `tokens` are their numbers, with which the noise goes; `scores` [count] are
// probabilities, up to a factor, by times. Returns how many there are.
inline int first_arrivals(const float* row, const uint32_t* tokens, int64_t size, float most,
                          float inverse_temperature, PlaceKey key, int count, int64_t* places,
                          float* scores) {
    int found = 0;
    for (int64_t from = 0; from < size; from += LANES) {
        const int some = (int)std::min<int64_t>(LANES, size - from);
        Floats logits = all(-INFINITY);
        Words numbers{}, unused;
        std::memcpy(&logits, row + from, some * sizeof(float));
        std::memcpy(&numbers, tokens + from, some * sizeof(uint32_t));
        const Floats weights = scaled_exp(logits, most, inverse_temperature);
        const float bar = found < count ? 0 : scores[count - 1];
        // an arrival is never before its uniform number
        if (!any_above(weights - uniforms(numbers, key, unused) * (bar * 0.9999f), 0.0f)) continue;
        const Floats race = weights / exponential_noise(numbers, key);
        for (int lane = 0; lane < some; lane++) {
            const float score = race[lane];
            if (!(score > (found < count ? 0 : scores[count - 1]))) continue;
            int at = found < count ? found++ : count - 1;
            for (; at > 0 && score > scores[at - 1]; at--)
                scores[at] = scores[at - 1], places[at] = places[at - 1];
            scores[at] = score, places[at] = from + lane;
        }
    }
    return found;
}

// The logarithm of the sum of e^((value - most) * inverse_temperature).
inline float log_sum(const float* row, int64_t size, float most, float inverse_temperature) {
    Floats sums{};
    for (int64_t from = 0; from < size; from += LANES) {
        Floats values = all(-INFINITY);
        std::memcpy(&values, row + from, std::min<int64_t>(LANES, size - from) * sizeof(float));
        sums += scaled_exp(values, most, inverse_temperature);
    }
    return std::log(sum(sums));
}

class HeadSession {
public:
    static constexpr int MOST_RANKS = 64;

    explicit HeadSession(const Head& head) : head(head), decoder(*head.decoder) {
        every.assign(head.layers, 1);
        nothing.assign(every.size() + 1, nullptr);
        for (int i = 0; i < decoder.vocabulary; i++)
            tokens_of_draws.push_back((uint32_t)head.draft_tokens[i]);
    }

    HeadSession(const HeadSession&) = delete;

    int64_t committed() const { return rows; }

    const Head& of() const { return head; }

    // Forget the rows from this one on, and what was drafted.
    void keep(int64_t count) {
        has_state = has_state && count >= rows;
        rows = std::min(rows, count), nodes.clear();
    }

    // Take over the first rows of another sequence of the same head, in place of one's own.
    void copy(const HeadSession& other, int64_t count) {
        keep(0);
        reserve(count);
        for (int64_t i = 0; i * CACHE_BLOCK < count; i++)
            std::copy(other.blocks[i].begin(), other.blocks[i].end(), blocks[i].begin());
        rows = count;
    }

    // Further committed rows; finds successors of the last one. `features` lie as they are wanted:
    // their own rows are numbered by `feature_rows`, or run from 0. Returns the first row whose
    // token is none of the target's, and then nothing was done; else -1. `run` is a Runner.
    template <class Pass>
    int32_t take(const FusionInput& features, const int64_t* tokens, int64_t count,
                 Successors& found, const Pass& run) {
        for (int64_t i = 0; i < count; i++)
            if (!is_token(tokens[i])) return (int32_t)i;
        nodes.clear();
        states.resize(decoder.hidden), newest = 0, reserve_logits(1);
        for (int64_t first = 0; first < count; first += MOST_TOGETHER) {
            const int64_t some = std::min(MOST_TOGETHER, count - first);
            take_some(features, tokens, first, some, first + some == count, run);
            rows += some;
        }
        has_state = true;
        rank(1, found, run);
        return -1;
    }

    // Drafted rows, each a child of an earlier call's or, for -1, of the last committed row; finds
    // their successors. They are numbered from 0 on since the last committed row. A head that reads
    // tokens alone also takes parents of the same call. Returns the first whose token or parent is
    // none, and then nothing was done; else -1.
    template <class Pass>
    int32_t level(const int64_t* parents, const int64_t* tokens, int64_t count, Successors& found,
                  const Pass& run) {
        const int64_t before = (int64_t)nodes.size();
        const bool is_lm = !decoder.fusion->reads;
        for (int64_t i = 0; i < count; i++)
            if (!is_token(tokens[i]) || parents[i] < -1 || !has_state ||
                parents[i] >= before + (is_lm ? i : 0))
                return (int32_t)i;
        const int64_t width = decoder.hidden, all = before + count;
        for (int64_t i = 0; i < count; i++)
            nodes.push_back({parents[i], parents[i] < 0 ? 0 : nodes[parents[i]].depth + 1});
        states.resize((1 + all) * width), newest = keeps_levels ? newest + 1 : 0;
        reserve_logits(count);
        sees.assign(count * all, 0), positions.clear(), origins.clear();
        for (int64_t i = 0; i < count; i++) {
            for (int64_t node = before + i; node >= 0; node = nodes[node].parent)
                sees[i * all + node] = 1;
            positions.push_back(rows + nodes[before + i].depth);
            origins.push_back(&states[(1 + parents[i]) * width]);
        }
        FusionInput fused{};
        fused.states = origins.data(), fused.results = &states[(1 + before) * width];
        Sequence sequence{0, rows + before, count, rows, count, nullptr};
        pass(fused, &sequence, 1, 0, tokens, run);
        rank(count, found, run);
        return -1;
    }

    // A tree behind the last committed row (EAGLE-2: Li et al. 2024, arXiv:2406.16858): of each
    // level the likeliest nodes are read, of all that was found the likeliest paths stay, in the
    // order in which they were found. `found` is what take() gave.
    template <class Pass>
    void draft(HeadTree& tree, Successors& found, const Pass& run) {
        std::vector<Candidate> all;
        tree.is_broken = 0;
        const auto add = [&](int64_t above, int64_t row, int64_t place) {
            const float before = above < 0 ? 0 : all[above].log_prob;
            const int64_t* tokens = found.tokens + place * found.ranks;
            const float* own = found.log_probs + place * found.ranks;
            for (int i = 0; i < found.ranks; i++) {
                const float chance = own[i];
                if (chance == chance) all.push_back({above, row, tokens[i], before + chance});
                else tree.is_broken = 1;
            }
        };
        add(-1, -1, 0);
        std::vector<int64_t> parents, tokens, read;
        size_t fresh = 0;  // of the newest level
        for (int level = 1; level < tree.depth && fresh < all.size(); level++) {
            read = best(all, tree.max_nodes);
            const auto is_left_out = [&](int64_t at) {
                return at < (int64_t)fresh || all[at].log_prob < tree.least_log_prob;
            };
            read.erase(std::remove_if(read.begin(), read.end(), is_left_out), read.end());
            if ((int)read.size() > tree.width) read.resize(tree.width);
            if (read.empty()) break;
            std::sort(read.begin(), read.end());
            const int64_t first = (int64_t)nodes.size();
            parents.clear(), tokens.clear(), fresh = all.size();
            for (int64_t at : read) parents.push_back(all[at].row), tokens.push_back(all[at].token);
            this->level(parents.data(), tokens.data(), (int64_t)read.size(), found, run);
            for (size_t i = 0; i < read.size(); i++) add(read[i], first + (int64_t)i, (int64_t)i);
        }
        put(all, tree);
    }

    // Whether each level has logits of its own, which stay until the next take().
    bool keeps_levels = false;

private:
    static constexpr int64_t MOST_TOGETHER = 256;  // rows of a pass

    struct Drafted {
        int64_t parent, depth;
    };

    // A node that a tree may hold: below which one, and which drafted row that is.
    struct Candidate {
        int64_t above, row, token;
        float log_prob;
    };

    const Head& head;
    const Decoder& decoder;
    int64_t rows = 0;      // committed
    bool has_state = false;  // of the last of them
    std::vector<Drafted> nodes;
    std::vector<float> states;  // of the last committed row and the drafted
    std::vector<std::vector<float>> logits{1};  // of calls
    size_t newest = 0;                          // of these
    std::vector<std::vector<Floats>> blocks;  // of the cache
    std::vector<uint8_t*> table;
    std::vector<uint32_t> tokens_of_draws;
    std::vector<uint8_t> every, sees;
    std::vector<float*> nothing;
    std::vector<int64_t> positions, order, ordered;
    std::vector<const float*> origins;

    bool is_token(int64_t token) const { return token >= 0 && token < head.target_vocabulary; }

    // A head of one layer needs only keys and values of all rows but the last one, which is put
    // first, and likewise of all where nothing is wanted yet.
    template <class Pass>
    void take_some(const FusionInput& features, const int64_t* tokens, int64_t first, int64_t count,
                   bool is_last, const Pass& run) {
        const bool is_single = every.size() == 1;
        Sequence sequences[2]{{0, rows, count, rows, 1, nullptr}};
        int number = 1, only_keys = is_single && !is_last;
        order.clear(), positions.clear(), ordered.clear();
        if (is_single && is_last && count > 1) {
            sequences[0] = {0, rows + count - 1, 1, rows + count - 1, 1, nullptr};
            sequences[1] = {0, rows, count - 1, rows, 0, nullptr};
            order.push_back(count - 1), number = 2, only_keys = 1;
        }
        for (int64_t i = 0; i < count - (number - 1); i++) order.push_back(i);
        sees.assign(is_single ? 1 : count * count, 1);
        for (int64_t i = 0; !is_single && i < count; i++)
            std::fill(&sees[i * count] + i + 1, &sees[i * count] + count, 0);
        FusionInput fused = features;
        fused.results = states.data();
        for (int64_t& row : order) {
            positions.push_back(rows + row), ordered.push_back(tokens[first + row]);
            row = features.feature_rows ? features.feature_rows[first + row] : first + row;
        }
        fused.feature_rows = order.data();
        pass(fused, sequences, number, only_keys, ordered.data(), run);
    }

    template <class Pass>
    void pass(const FusionInput& fused, Sequence* sequences, int number, int only_keys,
              const int64_t* tokens, const Pass& run) {
        reserve(sequences[0].start + sequences[0].count);
        for (int i = 0; i < number; i++) sequences[i].blocks = table.data();
        const uint8_t* const seen[2] = {sees.data(), nullptr};
        ForwardInput input{};
        input.num_sequences = number, input.rows = (int32_t)positions.size();
        input.layers = input.stop = (int32_t)every.size();
        input.sequences = sequences, input.tokens = tokens, input.positions = positions.data();
        input.attention = input.mlp = every.data(), input.hidden = nothing.data();
        input.sees = seen;
        input.logits = logits[newest].data(), input.only_keys = only_keys, input.fused = &fused;
        run(decoder, input);
    }

    void reserve_logits(int64_t count) {
        if (logits.size() <= newest) logits.resize(1 + newest);
        logits[newest].resize(count * decoder.vocabulary);
    }

    // Room for so many rows.
    void reserve(int64_t wanted) {
        const int64_t number = decoder.is_bfloat16 ? sizeof(bfloat16) : sizeof(float);
        const CacheShape shape{(int64_t)every.size(), decoder.num_kv_heads,
                               decoder.head_dim * number, false};
        while ((int64_t)table.size() * CACHE_BLOCK < wanted) {
            if (blocks.size() == table.size())  // else there was no memory for a longer table
                blocks.emplace_back((shape.bytes() + sizeof(Floats) - 1) / sizeof(Floats));
            table.push_back((uint8_t*)blocks.back().data());
        }
    }

    // Successors of the newest rows.
    template <class Pass>
    void rank(int64_t count, Successors& found, const Pass& run) {
        const int64_t first = nodes.empty() ? 0 : 1 + (int64_t)nodes.size() - count;
        found.logits = logits[newest].data();
        if (!found.ranks) return;
        run.each(count, [&](int64_t i) {
            const int64_t depth = nodes.empty() ? 0 : nodes[first - 1 + i].depth + 1;
            rank_row(&logits[newest][i * decoder.vocabulary], found.place + depth, found, i * found.ranks);
        });
    }

    // `at` is where the row's own results begin.
    void rank_row(const float* row, uint64_t place, const Successors& found, int64_t at) const {
        const int64_t size = decoder.vocabulary;
        const float most = largest_value(row, size), inverse = 1 / found.temperature;
        int64_t places[MOST_RANKS];
        float scores[MOST_RANKS];
        int ranked = 0;
        if (found.is_drawn && std::isfinite(most))
            ranked = first_arrivals(row, tokens_of_draws.data(), size, most, inverse,
                                    place_key(found.key, place), found.ranks, places, scores);
        if (ranked < found.ranks) topk_of(row, size, found.ranks, places);
        const float total = log_sum(row, size, most, inverse);
        for (int i = 0; i < found.ranks; i++) {
            found.tokens[at + i] = head.draft_tokens[places[i]];
            found.log_probs[at + i] = (row[places[i]] - most) * inverse - total;
        }
    }

    // The likeliest of all, which come after those that they are below.
    static std::vector<int64_t> best(const std::vector<Candidate>& all, int count) {
        std::vector<int64_t> places(all.size());
        for (size_t i = 0; i < places.size(); i++) places[i] = (int64_t)i;
        std::stable_sort(places.begin(), places.end(),
                         [&](int64_t a, int64_t b) { return all[a].log_prob > all[b].log_prob; });
        if ((int)places.size() > count) places.resize(count);
        return places;
    }

    static void put(const std::vector<Candidate>& all, HeadTree& tree) {
        std::vector<int64_t> node_of(all.size(), 0), kept = best(all, tree.max_nodes);
        std::sort(kept.begin(), kept.end());
        tree.nodes = 0, tree.parents[0] = -1, tree.log_probs[0] = 0;
        for (int64_t at : kept) {
            const int node = ++tree.nodes;
            node_of[at] = node;
            tree.tokens[node] = all[at].token, tree.log_probs[node] = all[at].log_prob;
            tree.parents[node] = all[at].above < 0 ? 0 : node_of[all[at].above];
        }
    }
};

}  // namespace draftwood
