// The rules of sampling.Sampling besides the temperature, on rows of logits.
#pragma once

#include <functional>
#include <utility>

#include "noise.h"

namespace draftwood {

// CFilters of structures.py: options of sampling_params.DrawingOptions.
struct Filters {
    const int64_t* biased;  // tokens whose logits get
    const double* biases;   // so much more
    int64_t num_biased;
    int64_t top_k;  // 0 keeps all
    double top_p, min_p;
    double repetition, presence, frequency;

    bool changes() const { return num_biased || penalises(); }
    bool penalises() const { return repetition != 1 || presence != 0 || frequency != 0; }
    bool cuts() const { return top_k > 0 || top_p < 1 || min_p > 0; }
};

// The tokens before a tree, of which the first `prompt` are not the answer's.
struct TextBefore {
    const int64_t* tokens;
    int64_t count, prompt;
};

// Tokens that may be drawn, and the weights by which they are; its memory is used again.
struct Kept {
    std::vector<int64_t> places;
    std::vector<float> weights;  // with zeros up to a multiple of LANES

    // The token that gumbel_argmax finds among them.
    int64_t draw(PlaceKey key) const {
        float best = 0;
        int64_t who = -1;
        for (size_t from = 0; from < places.size(); from += LANES) {
            Words tokens{};
            const size_t count = std::min<size_t>(LANES, places.size() - from);
            for (size_t lane = 0; lane < count; lane++) tokens[lane] = (uint32_t)places[from + lane];
            const Floats score = load(&weights[from]) / exponential_noise(tokens, key);
            for (size_t lane = 0; lane < count; lane++)
                if (score[lane] > best) best = score[lane], who = places[from + lane];
        }
        return who;
    }
};

// Memory of a thread for rows that are filtered.
struct FilterMemory {
    std::vector<float> row;
    std::vector<int32_t> times;  // by token, 0 between calls
    Kept kept, taken;

    static FilterMemory& own() {
        static thread_local FilterMemory memory;
        return memory;
    }
};

// Rows of logits of one tree, as its text's rules leave them.
class FilteredRows {
public:
    // `tokens`, ascending: those that the entries of a row stand for, null for 0, 1, ...
    FilteredRows(const Filters& filters, TextBefore before, float temperature,
                 const int64_t* tokens = nullptr)
        : filters(filters), before(before), temperature(temperature), tokens(tokens),
          is_cut(temperature > 0 && filters.cuts()), memory(FilterMemory::own()),
          kept(memory.kept) {}

    // The token that is drawn behind a path, which the root begins; -1 where none can be.
    int64_t draw(const float* row, int64_t size, const std::vector<int64_t>& path, PlaceKey key) {
        const float* scores = changed(row, size, path);
        if (!is_cut) return gumbel_argmax_of_logits(scores, size, temperature, key);
        if (filters.top_p >= 1 && filters.min_p <= 0) {
            // who is first of all is first of the likeliest too, if it is one of them
            const int64_t first = gumbel_argmax_of_logits(scores, size, temperature, key);
            if (first < 0 || is_likely(scores, size, first)) return first;
        }
        return cut(scores, size) ? kept.draw(key) : -1;
    }

    // The same row with minus infinity for what cannot be drawn.
    void write(const float* row, int64_t size, const std::vector<int64_t>& path, float* result) {
        const float* scores = changed(row, size, path);
        if (!is_cut || !cut(scores, size)) {  // a row that is none shows itself
            std::copy(scores, scores + size, result);
            return;
        }
        std::fill(result, result + size, -INFINITY);
        for (int64_t place : kept.places) result[place] = scores[place];
    }

private:
    const Filters& filters;
    const TextBefore before;
    const float temperature;
    const int64_t* const tokens;
    const bool is_cut;
    FilterMemory& memory;
    Kept& kept;

    // The entry of a token, or -1.
    int64_t place_of_token(int64_t token, int64_t size) const {
        if (!tokens) return token < size ? token : -1;
        const int64_t* found = std::lower_bound(tokens, tokens + size, token);
        return found < tokens + size && *found == token ? found - tokens : -1;
    }

    const float* changed(const float* row, int64_t size, const std::vector<int64_t>& path) {
        if (!filters.changes()) return row;
        memory.row.assign(row, row + size);
        for (int64_t i = 0; i < filters.num_biased; i++) {
            const int64_t place = place_of_token(filters.biased[i], size);
            if (place >= 0) memory.row[place] += (float)filters.biases[i];
        }
        if (filters.repetition != 1) penalise_repetition(path);
        if (filters.presence != 0 || filters.frequency != 0) penalise_said(path);
        return memory.row.data();
    }

    // Calls `act` with each entry whose token is in the text from `first` on or in the path, and
    // with how often it is.
    template <typename Act>
    void each_seen(int64_t first, const std::vector<int64_t>& path, Act act) {
        const int64_t size = (int64_t)memory.row.size();
        std::vector<int32_t>& times = memory.times;
        if ((int64_t)times.size() < size) times.resize(size);
        auto walk = [&](auto visit) {
            for (int64_t i = first; i < before.count; i++) visit(before.tokens[i]);
            for (int64_t token : path) visit(token);
        };
        walk([&](int64_t token) {
            const int64_t place = place_of_token(token, size);
            if (place >= 0) times[place]++;
        });
        walk([&](int64_t token) {
            const int64_t place = place_of_token(token, size);
            if (place >= 0 && times[place])
                act(memory.row[place], std::exchange(times[place], 0));
        });
    }

    void penalise_repetition(const std::vector<int64_t>& path) {
        const float penalty = (float)filters.repetition;
        each_seen(0, path, [&](float& score, int32_t) {
            score = score < 0 ? score * penalty : score / penalty;
        });
    }

    void penalise_said(const std::vector<int64_t>& path) {
        each_seen(before.prompt, path, [&](float& score, int32_t count) {
            score = (float)(score - (filters.presence + filters.frequency * count));
        });
    }

    // Whether fewer than top_k entries are above this one.
    bool is_likely(const float* scores, int64_t size, int64_t place) const {
        Ints above{};  // -1 for each
        int64_t i = 0, rest = 0;
        for (; i + LANES <= size; i += LANES) above += load(scores + i) > scores[place];
        for (; i < size; i++) rest += scores[i] > scores[place];
        return rest - sum(above) < filters.top_k;
    }

    // Fills `kept`, in the order of Sampling: top-k, top-p, min-p. False where the row is none.
    bool cut(const float* scores, int64_t size) {
        const float most = largest_value(scores, size);
        if (!std::isfinite(most)) return false;
        const bool has_top_k = filters.top_k > 0 && filters.top_k < size;
        if (has_top_k) collect(scores, size, most, kth_largest(scores, size));
        if (filters.top_p < 1) keep_nucleus(scores, size, most, has_top_k);
        else if (!has_top_k) {
            // no fewer than min-p keeps, which weighs them
            const float reach = filters.min_p > 0 ? 1 - std::log((float)filters.min_p) : LEAST;
            collect(scores, size, most, most - std::min(reach, LEAST) * temperature);
        }
        if (filters.min_p > 0)
            keep_if([&](size_t i) { return !(kept.weights[i] < (float)filters.min_p); });
        return true;
    }

    static constexpr float LEAST = 88;  // weights of e to its negative power and less are 0

    float kth_largest(const float* scores, int64_t size) {
        constexpr int64_t FEW = 64;
        const int64_t count = filters.top_k;
        if (count <= FEW) {
            int64_t places[FEW];
            topk_of(scores, size, (int)count, places);
            return scores[places[count - 1]];
        }
        std::vector<float> all(scores, scores + size);
        std::nth_element(all.begin(), all.begin() + count - 1, all.end(), std::greater<float>());
        return all[count - 1];
    }

    // All entries from a value on, with their weights.
    void collect(const float* scores, int64_t size, float most, float least) {
        std::vector<int64_t>& places = kept.places;
        places.clear();
        int64_t place = 0;
        for (; place + LANES <= size; place += LANES)
            if (any_not_below(load(scores + place), std::nextafter(least, -INFINITY)))
                for (int lane = 0; lane < LANES; lane++)
                    if (scores[place + lane] >= least) places.push_back(place + lane);
        for (; place < size; place++)
            if (scores[place] >= least) places.push_back(place);
        weigh(scores, most);
    }

    void weigh(const float* scores, float most) {
        const float inverse = 1 / temperature;
        std::vector<float>& weights = kept.weights;
        weights.assign((kept.places.size() + LANES - 1) / LANES * LANES, -INFINITY);
        for (size_t i = 0; i < kept.places.size(); i++) weights[i] = scores[kept.places[i]];
        for (size_t i = 0; i < weights.size(); i += LANES)
            store(&weights[i], scaled_exp(load(&weights[i]), most, inverse));
    }

    // The likeliest that reach top_p together. `is_all`: all that has a chance is in `kept`; else
    // ever more of the row is looked at, as the set is nearly always small.
    void keep_nucleus(const float* scores, int64_t size, float most, bool is_all) {
        const double total = is_all ? sum_of(kept.weights.data(), kept.weights.size())
                                    : total_weight(scores, size, most);
        for (float reach = 7; !is_all; reach *= 2) {
            collect(scores, size, most, most - std::min(reach, LEAST) * temperature);
            is_all = reach >= LEAST ||
                     sum_of(kept.weights.data(), kept.weights.size()) >= filters.top_p * total;
        }
        const float share = (float)(1 / total);
        std::vector<size_t> order(kept.places.size());
        for (size_t i = 0; i < order.size(); i++) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
            return kept.weights[a] > kept.weights[b];
        });
        double reached = 0;
        size_t count = 0;
        for (; count < order.size(); count++) {
            if (count && reached >= filters.top_p) break;
            reached += kept.weights[order[count]] * share;
        }
        order.resize(count);
        take(order);
    }

    float total_weight(const float* scores, int64_t size, float most) const {
        const float inverse = 1 / temperature;
        Floats sums{};
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES) sums += scaled_exp(load(scores + i), most, inverse);
        if (i < size) sums += scaled_exp_of(scores + i, size - i, most, inverse);
        return sum(sums);
    }

    template <typename Holds>
    void keep_if(Holds holds) {
        std::vector<size_t> order;
        for (size_t i = 0; i < kept.places.size(); i++)
            if (holds(i)) order.push_back(i);
        take(order);
    }

    void take(const std::vector<size_t>& order) {
        Kept& taken = memory.taken;
        taken.places.clear();
        taken.weights.assign((order.size() + LANES - 1) / LANES * LANES, 0);
        for (size_t i = 0; i < order.size(); i++) {
            taken.places.push_back(kept.places[order[i]]);
            taken.weights[i] = kept.weights[order[i]];
        }
        std::swap(kept, taken);
    }
};

// Tokens from the root of a tree to a node.
inline std::vector<int64_t> path_to(int64_t node, const int64_t* tokens, const int64_t* parents) {
    std::vector<int64_t> path;
    for (; node >= 0; node = parents[node]) path.push_back(tokens[node]);
    std::reverse(path.begin(), path.end());
    return path;
}

}  // namespace draftwood
