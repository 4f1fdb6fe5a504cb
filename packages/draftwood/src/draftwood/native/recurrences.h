// Layers with a running state, over trees (Wu et al. 2025, arXiv:2505.14969).
//
// A text is taken in blocks of the cache. A row reads the state before its block, and one by one
// what its ancestors in the block put there. So it gives the same bits alone, in a chain and within
// a tree; a tree leaves nothing behind but rows, of which those on the path that is taken stay. The
// state before a block is made of the rows of the block before it once a row asks for it.
#pragma once

#include "activations.h"
#include "lineages.h"
#include "network.h"

namespace draftwood {

// What a thread keeps of one key head's rows while it goes through them.
struct ScanBench {
    std::vector<float> mixed, kept;  // a row's channels; of each row key, what was put, and sums
    std::vector<float> fed;          // of each row, where heads of keys stand for one
    struct State {
        int64_t block, node;  // the last before the block
        const float* numbers;
    };
    std::vector<State> states;
    std::vector<std::vector<float>> rooms;  // of states that have no memory
    size_t used = 0;
};

// One sequence's rows through one key head of a layer, and the heads of values that share it.
class Scan {
public:
    // `mixed` and `results` are of the sequence's first row, with so many numbers from row to row.
    Scan(const Recurrence& layer, float epsilon, int unit, const CacheShape& shape,
         const Lineage& lineage, float* mixed, size_t mixed_stride, float* results,
         size_t results_stride, ScanBench& bench)
        : layer(layer), epsilon(epsilon), unit(unit), shape(shape), lineage(lineage), mixed(mixed),
          mixed_stride(mixed_stride), results(results), results_stride(results_stride),
          bench(bench), keys(layer.key_dim), values(layer.value_dim), heads(layer.heads_per_key()),
          inputs(mixed + (size_t)unit * layer.channels()), inputs_stride(mixed_stride),
          first_block(lineage.before / CACHE_BLOCK), origin(first_block * CACHE_BLOCK) {}

    void run() {
        const size_t width = kept_size();
        if (!keys)
            for (int64_t row = 0; row < lineage.count; row++) multiply_factors(row);
        if (layer.copies > 1) take_shares();
        bench.kept.resize(lineage.count * width), bench.mixed.resize(layer.channels());
        bench.states.clear(), bench.used = 0;
        knows_first = first_block == 0 || (memory(first_block) && CacheShape::knows_state(
                                                                      memory(first_block)));
        for (int64_t row = 0; row < lineage.count; row++) {
            const int64_t place = place_of(row), block = place / CACHE_BLOCK;
            const float* state = state_before(row, block);
            if (!keys) { convolve(row), gate(row); continue; }
            gather(row, block * CACHE_BLOCK, place);
            step(row, state);
        }
        for (int64_t row = 0; row < lineage.count; row++) keep(row);
    }

private:
    static constexpr int64_t COMMITTED = -1;
    static constexpr int MOST_COLUMNS = 4;  // vectors at once
    // below which nothing is left: products with numbers that are not normal take a hundred times
    // as long
    static constexpr float LEAST_SHARE = 1e-18f, LEAST_IN_STATE = 1e-30f;

    const Recurrence& layer;
    const float epsilon;
    const int unit;
    const CacheShape& shape;
    const Lineage& lineage;
    float* const mixed;
    const size_t mixed_stride;
    float* const results;
    const size_t results_stride;
    ScanBench& bench;
    const int keys, values, heads;  // dimensions, and heads that share the key
    const float* inputs;            // what the sequence's rows are fed, and from row to row
    size_t inputs_stride;
    const int64_t first_block, origin;
    bool knows_first = false;  // whether the state before the first block is known
    const float* sources[CACHE_BLOCK];  // kept numbers of a row's ancestors in its block
    int num_sources = 0;

    // Key, what each head put under it, and each head's sum of logarithms.
    size_t kept_size() const { return keys ? keys + (size_t)heads * (values + 1) : 0; }
    const float* put_of(const float* kept, int head) const { return kept + keys + head * values; }
    float sum_of(const float* kept, int head) const { return kept[keys + heads * values + head]; }

    int64_t place_of(int64_t row) const { return lineage.before + lineage.length(row) - 1; }

    float* memory(int64_t block) const { return shape.memory(lineage.blocks[block]); }
    float* state_in(float* memory) const {
        return CacheShape::state(memory) + layer.state_at + (size_t)unit * layer.state_size();
    }
    float* row_in(float* memory, int64_t within) const {
        return shape.row(memory, within) + layer.row_at + (size_t)unit * layer.row_size();
    }

    // What a node, or a committed token, was fed to the recurrence.
    const float* fed(int64_t node) const {
        return node < lineage.ran() ? stored(lineage.before + node)
                                    : inputs + (node - lineage.ran()) * inputs_stride;
    }

    // Queries and keys, and the values of this head's share.
    void take_shares() {
        const int width = layer.channels(), part = unit % layer.copies, both = 2 * keys;
        const size_t group = 2 * keys + (size_t)layer.copies * heads * values;
        bench.fed.resize(lineage.count * width);
        for (int64_t row = 0; row < lineage.count; row++) {
            const float* const from = mixed + row * mixed_stride + unit / layer.copies * group;
            const float* const own = from + both + (size_t)part * heads * values;
            float* const to = bench.fed.data() + row * width;
            std::copy(from, from + both, to), std::copy(own, own + heads * values, to + both);
        }
        inputs = bench.fed.data(), inputs_stride = width;
    }
    const float* stored(int64_t place) const {
        const int64_t block = place / CACHE_BLOCK;
        if (block >= first_block) return row_in(memory(block), place % CACHE_BLOCK);
        return knows_first ? row_in(memory(first_block), place - origin)
                           : row_in(memory(block), place % CACHE_BLOCK);
    }
    const float* fed_at(int64_t row, int64_t place) const {
        return place < lineage.before ? stored(place)
                                      : fed(lineage.node(row, place - lineage.before));
    }

    const float* kept_of(int64_t node) const {
        return node < lineage.ran() ? stored(lineage.before + node) + layer.channels()
                                    : bench.kept.data() + (node - lineage.ran()) * kept_size();
    }

    // The ancestors at places [from, to) of a row's text.
    void gather(int64_t row, int64_t from, int64_t to) {
        num_sources = 0;
        for (int64_t place = from; place < to; place++)
            sources[num_sources++] =
                place < lineage.before ? stored(place) + layer.channels()
                                       : kept_of(lineage.node(row, place - lineage.before));
    }

    // The state before a block of a row's text; null for zeros.
    const float* state_before(int64_t row, int64_t block) {
        if (block == 0) return nullptr;
        const int64_t last = block * CACHE_BLOCK - 1 - lineage.before,
                      node = last < 0 ? COMMITTED : lineage.node(row, last);
        if (node == COMMITTED && memory(block) && CacheShape::knows_state(memory(block)))
            return state_in(memory(block));
        for (const ScanBench::State& state : bench.states)
            if (state.block == block && state.node == node) return state.numbers;
        const float* const before = state_before(row, block - 1);
        if (keys) gather(row, (block - 1) * CACHE_BLOCK, block * CACHE_BLOCK);
        float* const home = node == COMMITTED || lineage.grows() ? memory(block) : nullptr;
        float* const after = home ? state_in(home) : room();
        if (keys) fold(before, after);
        if (home) look_back(row, block, home);
        bench.states.push_back({block, node, after});
        return after;
    }

    // Room for one more state; rows that follow each other never ask for an earlier one again.
    float* room() {
        if (!(lineage.grows() && bench.used) && bench.used++ == bench.rooms.size())
            bench.rooms.emplace_back();
        std::vector<float>& room = bench.rooms[bench.used - 1];
        room.resize(layer.state_size());
        return room.data();
    }

    // Copies the rows before a block that convolutions look back at.
    void look_back(int64_t row, int64_t block, float* home) const {
        for (int i = 1; i < layer.kernel; i++) {
            const float* from = fed_at(row, block * CACHE_BLOCK - i);
            std::copy(from, from + layer.channels(), row_in(home, -i));
        }
    }

    // The state after the sources; it may take the place of the one before.
    void fold(const float* before, float* after) const {
        for (int head = 0; head < heads; head++) {
            const float end = sum_of(sources[num_sources - 1], head);
            const float left = what_is_left(end);
            float shares[CACHE_BLOCK];
            decay_from(head, end, shares);
            const size_t at = (size_t)head * keys * values;
            in_columns([&](auto columns, int from) {
                fold_columns<columns.value>(before ? before + at + from : nullptr, left,
                                            shares, head, from, after + at + from);
            });
        }
    }

    template <int COLUMNS>
    void fold_columns(const float* before, float left, const float* shares, int head, int from,
                      float* after) const {
        for (int key = 0; key < keys; key++) {
            const size_t place = (size_t)key * values;
            Floats total[COLUMNS]{};
            for (int j = 0; before && j < COLUMNS; j++)
                total[j] = load(before + place + j * LANES) * left;
            for (int i = 0; i < num_sources; i++) {
                const Floats share = all(sources[i][key] * shares[i]);
                const float* const put = put_of(sources[i], head) + from;
                for (int j = 0; j < COLUMNS; j++)
                    total[j] = fma(share, load(put + j * LANES), total[j]);
            }
            for (int j = 0; j < COLUMNS; j++)
                store(after + place + j * LANES, flushed(total[j], LEAST_IN_STATE));
        }
    }

    // act(columns, from) for the values from `from` on, in as many vectors.
    template <class Act>
    void in_columns(Act act) const {
        int from = 0;
        for (; from + MOST_COLUMNS * LANES <= values; from += MOST_COLUMNS * LANES)
            act(std::integral_constant<int, MOST_COLUMNS>{}, from);
        for (; from < values; from += LANES) act(std::integral_constant<int, 1>{}, from);
    }

    static float what_is_left(float sum) {
        const float share = std::exp(sum);
        return share < LEAST_SHARE ? 0 : share;
    }
    static Floats flushed(Floats values, float least) {
        return chosen(below(absolute(values), all(least)), Floats{}, values);
    }

    // What is left of each source where the sum of a head's logarithms is `sum`.
    void decay_from(int head, float sum, float* shares) const {
        for (int i = 0; i < num_sources; i++) shares[i] = sum - sum_of(sources[i], head);
        std::fill(shares + num_sources, shares + CACHE_BLOCK, 0.0f);
        for (int i = 0; i < CACHE_BLOCK; i += LANES)
            store(shares + i, flushed(exponential(load(shares + i)), LEAST_SHARE));
    }

    void step(int64_t row, const float* state) {
        convolve(row);
        float* const query = bench.mixed.data();
        const float* const value = query + 2 * keys;
        float* const kept = bench.kept.data() + row * kept_size();
        if (!layer.skips) make_unit(query, 1 / std::sqrt((float)keys)), make_unit(query + keys, 1);
        std::copy(query + keys, query + 2 * keys, kept);
        float by_key[CACHE_BLOCK], by_query[CACHE_BLOCK];
        int i = 0;
        for (; i + 4 <= num_sources; i += 4)
            multiply<4>(kept, query, &sources[i], &by_key[i], &by_query[i]);
        for (; i < num_sources; i++)
            multiply<1>(kept, query, &sources[i], &by_key[i], &by_query[i]);
        const float own = dot(query, kept);
        for (int head = 0; head < heads; head++) {
            const int which = layer.value_head(unit, head);
            const float *gates = mixed + row * mixed_stride + layer.fed_width(),
                        *rates = gates + layer.width();
            const float step = step_of(rates, which),
                        since = num_sources ? sum_of(sources[num_sources - 1], head) : 0,
                        sum = since + layer.decays[which] * step;
            kept[keys + heads * values + head] = sum;
            float shares[CACHE_BLOCK];
            decay_from(head, sum, shares);
            HeadStep own_step{state ? state + (size_t)head * keys * values : nullptr,
                              query,
                              kept,
                              value + head * values,
                              kept + keys + head * values,
                              results + row * results_stride + (size_t)which * values,
                              own,
                              what_is_left(sum),
                              layer.skips ? step : 1 / (1 + std::exp(-rates[which])),
                              layer.skips ? layer.skips[which] : 0};
            for (int i = 0; i < num_sources; i++)
                own_step.by_key[i] = by_key[i] * shares[i],
                own_step.by_query[i] = by_query[i] * shares[i];
            in_columns([&](auto columns, int from) {
                if (layer.skips) step_columns<columns.value, false>(own_step, head, from);
                else step_columns<columns.value, true>(own_step, head, from);
            });
            if (!layer.skips) finish(own_step.result, gates + (size_t)which * values);
        }
    }

    // Steps lie behind rates, unless they are rates.
    float step_of(const float* rates, int which) const {
        const float told = rates[(layer.skips ? 0 : layer.value_heads) + which],
                    step = softplus(told + layer.steps[which]);
        return layer.skips ? std::min(std::max(step, layer.least_step), layer.most_step) : step;
    }

    // Products of a row's key and query with the keys of some of its sources.
    template <int COUNT>
    void multiply(const float* key, const float* query, const float* const* some, float* by_key,
                  float* by_query) const {
        Floats of_key[COUNT]{}, of_query[COUNT]{};
        for (int i = 0; i < keys; i += LANES) {
            const Floats own = load(key + i), asked = load(query + i);
            for (int j = 0; j < COUNT; j++) {
                const Floats other = load(some[j] + i);
                of_key[j] = fma(own, other, of_key[j]);
                of_query[j] = fma(asked, other, of_query[j]);
            }
        }
        for (int j = 0; j < COUNT; j++)
            by_key[j] = sum(of_key[j]), by_query[j] = sum(of_query[j]);
    }

    // One row and head: what it reads, and where it puts what it writes and gives.
    struct HeadStep {
        const float *state, *query, *key, *value;
        float *put, *result;
        float own, left, rate;  // query by key; what is left of the state; what is replaced
        float skip;
        float by_key[CACHE_BLOCK], by_query[CACHE_BLOCK];  // products, with what is left
    };

    // What is known of the values is taken off them, or not.
    template <int COLUMNS, bool IS_KNOWN>
    void step_columns(const HeadStep& step, int head, int from) const {
        Floats known[COLUMNS]{}, seen[COLUMNS]{};
        for (int i = 0; step.state && i < keys; i++) {
            const float* const line = step.state + (size_t)i * values + from;
            const Floats key = all(step.key[i]), query = all(step.query[i]);
            for (int j = 0; j < COLUMNS; j++) {
                const Floats numbers = load(line + j * LANES);
                if (IS_KNOWN) known[j] = fma(key, numbers, known[j]);
                seen[j] = fma(query, numbers, seen[j]);
            }
        }
        for (int j = 0; j < COLUMNS; j++) known[j] *= step.left, seen[j] *= step.left;
        for (int i = 0; i < num_sources; i++) {
            const float* const put = put_of(sources[i], head) + from;
            const Floats key = all(step.by_key[i]), query = all(step.by_query[i]);
            for (int j = 0; j < COLUMNS; j++) {
                const Floats numbers = load(put + j * LANES);
                if (IS_KNOWN) known[j] = fma(key, numbers, known[j]);
                seen[j] = fma(query, numbers, seen[j]);
            }
        }
        for (int j = 0; j < COLUMNS; j++) {
            const int place = from + j * LANES;
            const Floats value = load(step.value + place), put = (value - known[j]) * step.rate;
            store(step.put + place, put);
            const Floats result = fma(all(step.own), put, seen[j]);
            store(step.result + place, IS_KNOWN ? result : fma(all(step.skip), value, result));
        }
    }

    // Normed, and gated.
    void finish(float* result, const float* gate) const {
        Floats squares{};
        for (int i = 0; i < values; i += LANES)
            squares = fma(load(result + i), load(result + i), squares);
        const float inverse = 1 / std::sqrt(sum(squares) / values + epsilon);
        for (int i = 0; i < values; i += LANES)
            store(result + i,
                  load(result + i) * inverse * load(layer.norm + i) * silu(load(gate + i)));
    }

    // Depthwise, over a row and its nearest ancestors.
    void convolve(int64_t row) {
        const int64_t place = place_of(row);
        const int channels = layer.channels();
        const float* const taps = layer.taps + (size_t)unit * layer.kernel * channels;
        const float* const biases =
            layer.tap_biases ? layer.tap_biases + (size_t)unit * channels : nullptr;
        float* const to = bench.mixed.data();
        const float* inputs[CACHE_BLOCK];
        const int first = (int)std::max<int64_t>(0, layer.kernel - 1 - place);
        for (int tap = first; tap < layer.kernel; tap++)
            inputs[tap] = fed_at(row, place - (layer.kernel - 1 - tap));
        for (int i = 0; i < channels; i += LANES) {
            Floats total = biases ? load(biases + i) : Floats{};
            for (int tap = first; tap < layer.kernel; tap++)
                total = fma(load(taps + (size_t)tap * channels + i), load(inputs[tap] + i), total);
            store(to + i, keys ? silu(total) : total);
        }
    }

    // What a short convolution is fed.
    void multiply_factors(int64_t row) {
        float* const fed = mixed + row * mixed_stride + (size_t)unit * values;
        const float* const other = fed + 2 * layer.width();
        for (int i = 0; i < values; i += LANES) store(fed + i, load(fed + i) * load(other + i));
    }

    void gate(int64_t row) {
        const size_t at = (size_t)unit * values;
        const float* const gate = mixed + row * mixed_stride + layer.width() + at;
        float* const result = results + row * results_stride + at;
        for (int i = 0; i < values; i += LANES)
            store(result + i, load(&bench.mixed[i]) * load(gate + i));
    }

    void make_unit(float* vector, float scale) const {
        const float factor = scale / std::sqrt(dot(vector, vector) + 1e-6f);
        for (int i = 0; i < keys; i += LANES) store(vector + i, load(vector + i) * factor);
    }

    float dot(const float* a, const float* b) const {
        Floats total{};
        for (int i = 0; i < keys; i += LANES) total = fma(load(a + i), load(b + i), total);
        return sum(total);
    }

    static float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

    void keep(int64_t row) const {
        const int64_t place = lineage.start + row;
        float* const home = memory(place / CACHE_BLOCK);
        if (!home) return;
        float* const to = row_in(home, place % CACHE_BLOCK);
        const float* const given = fed(lineage.ran() + row);
        const float* const kept = bench.kept.data() + row * kept_size();
        std::copy(given, given + layer.channels(), to);
        std::copy(kept, kept + kept_size(), to + layer.channels());
    }
};

// Say which states the blocks of a sequence know once a pass is over.
inline void mark_states(const CacheShape& shape, const Lineage& lineage) {
    const int64_t first = lineage.before / CACHE_BLOCK,
                  last = (lineage.start + lineage.count - 1) / CACHE_BLOCK;
    const auto known = [&](int64_t block) -> int64_t* {
        float* const memory = shape.memory(lineage.blocks[block]);
        return memory ? &CacheShape::knows_state(memory) : nullptr;
    };
    if (!known(first) || !*known(first))  // it was made of those before it, back to a known one
        for (int64_t block = first - 1; block > 0 && known(block) && !*known(block); block--)
            *known(block) = true;
    for (int64_t block = first; block <= last; block++)
        if (known(block)) *known(block) = block == first || lineage.grows();
}

}  // namespace draftwood
