// A decoder run over the rows of draft trees, for CPUs. What families of models do differently is
// told by switches and numbers that any of them may set (models/families.py).
//
// One call runs all layers, as a list of phases that threads share (team.h). A row is a token of
// some sequence: it writes its key and value to a place in that sequence's blocks of the cache and
// sees the sequence's committed tokens and its own ancestors (visibility.h). Whatever is added up
// for a row is added up in an order that does not depend on the other rows.
#include "attention.h"
#include "attention_bytes.h"
#include "attention_pairs.h"
#include "clock.h"
#include "lack_of_memory.h"
#include "marked_rows.h"
#include "recurrences.h"
#include "rows_of_states.h"
#include "team.h"
#include "workshop.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace draftwood {

namespace {

// What the output head's products come to as logits.
Floats bounded(const Decoder& decoder, Floats products) {
    return capped(products * all(decoder.logit_scale), decoder.logit_cap);
}

void rotate(float* head, int dim, const float* cosines, const float* sines) {
    for (int i = 0; i < dim / 2; i++) {
        float first = head[i], second = head[i + dim / 2];
        head[i] = first * cosines[i] - second * sines[i];
        head[i + dim / 2] = second * cosines[i] + first * sines[i];
    }
}

// Of a head's query as attention in pairs or in bytes reads it.
int query_words(const Decoder& decoder, int head_dim) {
    return decoder.has_byte_cache ? ByteQuery::size(head_dim) : head_dim / 2;
}

// Whether each thread encodes the stream and what attention gave for itself: for a few rows and
// threads that is faster than to wait until others have written what is read then.
bool encodes_apart(const Decoder& decoder, const ForwardInput& run, int threads) {
    constexpr int MOST_APART = 8;
    const bool reads_stream = !decoder.fusion && !decoder.is_parallel,
               has_marks = run.marked && run.marked->count;
    return reads_stream && !has_marks && run.rows <= 2 * MOST_ROWS && threads <= MOST_APART;
}

// Numbers of a row that a layer hands to its last product before the network.
int attended_width(const Decoder& decoder, int index) {
    const Recurrence& recurrence = decoder.layers[index].recurrence;
    return recurrence.key_heads ? recurrence.width()
                                : decoder.heads * decoder.attention(index).head_dim;
}

bool is_gated(const Decoder& decoder, int index) {
    const Layer& layer = decoder.layers[index];
    return !layer.recurrence.key_heads && layer.query.outputs == 2 * attended_width(decoder, index);
}

// The most of all layers, each by its number.
template <class Width>
int widest(int layers, Width width) {
    int most = 0;
    for (int layer = 0; layer < layers; layer++) most = std::max(most, width(layer));
    return most;
}

// Numbers of a row that a layer's first products give.
int mixed_width_of(const Decoder& decoder, int layers) {
    return widest(layers, [&](int index) {
        const Layer& layer = decoder.layers[index];
        return layer.query.outputs + layer.key.outputs + layer.values();
    });
}

int attended_width_of(const Decoder& decoder, int layers) {
    return widest(layers, [&](int index) { return attended_width(decoder, index); });
}

// Entries within the networks, and within what adds the layers' inputs.
int inner_width_of(const Decoder& decoder, int layers) {
    return std::max(decoder.inputs.size, widest(layers, [&](int index) {
        return decoder.layers[index].gate.outputs;
    }));
}

int head_dim_of(const Decoder& decoder, int layers) {
    return widest(layers, [&](int index) { return decoder.attention(index).head_dim; });
}

// What the cache has of each layer; `each` is where the shape points to.
CacheShape cache_shape(const Decoder& decoder, int layers, std::vector<CacheLayer>& each) {
    const int64_t number = decoder.is_bfloat16 ? sizeof(bfloat16) : sizeof(float);
    CacheShape shape{0, 0, 0, decoder.has_byte_cache, 0, 0, 0, nullptr};
    each.assign(1, {});
    for (int layer = 0; layer < layers; layer++) {
        const Recurrence& recurrence = decoder.layers[layer].recurrence;
        if (!recurrence.key_heads) {
            if (!decoder.layers[layer].key.outputs) continue;
            const AttentionShape own = decoder.attention(layer);
            CacheLayer& last = each.back();
            last.heads = own.num_kv_heads;
            last.row_bytes =
                decoder.has_byte_cache ? padded_dim(own.head_dim) : own.head_dim * number;
            const CacheLayer next{0, 0, last.bytes_before + 2 * (int64_t)last.place_bytes(),
                                  last.heads_before + 2 * last.heads};
            each.push_back(next), shape.layers++;
            continue;
        }
        shape.state_size += (int64_t)recurrence.key_heads * recurrence.state_size();
        shape.row_size += (int64_t)recurrence.key_heads * recurrence.row_size();
        shape.lookback = std::max<int64_t>(shape.lookback, recurrence.kernel - 1);
    }
    shape.each = each.data();
    return shape;
}

// Whether a head begins with the product that joins its inputs, not with what it drafted itself.
bool joins_inputs(const Decoder& decoder, const ForwardInput& run) {
    const Fusion* fusion = decoder.fusion;
    return fusion && (!fusion->reads || fusion->joins_tokens || run.fused->features);
}

// Rows of products' inputs as one thread encoded them for itself, and what they are of.
struct OwnRows {
    static constexpr int NOTHING = -1;

    Rows normed, attended;
    int normed_of = NOTHING, attended_of = NOTHING;

    void forget() { normed_of = attended_of = NOTHING; }
};

// What phases hand to each other, kept from run to run.
struct Scratch {
    std::vector<CacheLayer> cache_layers;
    CacheShape cache;
    int mixed_width = 0, gated_width = 0, query_words = 0;
    std::vector<float> stream, branch, mixed, attended, gated, cosines, sines;
    std::vector<float> inputs, beside;  // [rows][layers][size] of each layer; of a network's row
    Rows narrow, attention, wide;  // encoded rows of the stream, of what attention and gates gave
    Rows features, paired;  // of a head's: joined states of the target, and a token and a state
    int whole_rows = 0;     // the first rows, of which more than keys and values is wanted
    std::vector<uint32_t> encoded_queries;  // [rows][heads][query_words]
    Marks marks;
    std::vector<int> kv_heads;                // each number of them that some layer has
    std::vector<Visibility> visibilities;     // for each of these
    std::vector<Lineage> lineages;       // by sequence, where some layer has a running state
    std::vector<Floats> averages;        // [rows of single blocks][heads], until they are joined
    std::vector<Blocks> blocks;          // by row: where its key and value go
    std::vector<int64_t> places;
    std::vector<int> wanted;             // rows whose logits are wanted
    // of one layer's experts: [rows][all_per_row], and what they give to the stream
    std::vector<Choice> choices;
    std::vector<float> expert_gated, expert_mixed;
    std::vector<ExpertRows> groups;
    int num_groups = 0;
    bool is_apart = false;                      // see encodes_apart
    std::vector<std::unique_ptr<OwnRows>> own;  // by thread

    void reserve(const Decoder& decoder, const ForwardInput& run, int threads, int team) {
        auto grow = [&](std::vector<float>& values, int width) {
            if (values.size() < (size_t)run.rows * width) values.resize((size_t)run.rows * width);
        };
        const int attended_width = attended_width_of(decoder, run.layers);
        const int inner_width = inner_width_of(decoder, run.layers);
        cache = cache_shape(decoder, run.layers, cache_layers);
        mixed_width = mixed_width_of(decoder, run.layers);
        gated_width = ceil_div(inner_width, LANES) * LANES;
        query_words = draftwood::query_words(decoder, head_dim_of(decoder, run.layers));
        grow(stream, decoder.hidden), grow(branch, decoder.hidden);
        grow(mixed, mixed_width), grow(attended, attended_width), grow(gated, gated_width);
        grow(inputs, run.layers * decoder.inputs.size);
        grow(cosines, decoder.rotaries * decoder.rotary_dim / 2);
        grow(sines, decoder.rotaries * decoder.rotary_dim / 2);
        narrow.reserve(decoder.encodings, run.rows, decoder.hidden);
        attention.reserve(decoder.encodings, run.rows, attended_width);
        if (const Fusion* fusion = decoder.fusion) {
            paired.reserve(decoder.encodings, run.rows, 2 * decoder.hidden);
            if (joins_inputs(decoder, run))
                features.reserve(decoder.encodings, run.rows,
                                 std::max(fusion->reads + fusion->joins_tokens, 1) * decoder.hidden);
        }
        wide.reserve(decoder.encodings, run.rows, inner_width);
        is_apart = encodes_apart(decoder, run, run.trace ? threads : team);
        const int apart = is_apart ? team : 0;
        while ((int)own.size() < apart) own.push_back(std::make_unique<OwnRows>());
        for (int i = 0; i < apart; i++) {
            OwnRows* const each = own[i].get();
            each->normed.reserve(decoder.encodings, run.rows, decoder.hidden);
            each->attended.reserve(decoder.encodings, run.rows, attended_width);
            each->forget();
        }
        const size_t words = (size_t)run.rows * decoder.heads * query_words;
        if (encoded_queries.size() < words) encoded_queries.resize(words);
        divide(decoder, run, threads);
        marks.begin(run.marked, run.rows, run.layers, decoder.hidden);
        for (int layer = 0; layer < run.layers; layer++) {
            reserve_experts(decoder.layers[layer].experts, decoder.hidden, run.rows);
            if (decoder.layers[layer].has_both()) grow(beside, decoder.hidden);
        }
        blocks.clear(), places.clear(), wanted.clear(), whole_rows = 0;
        for (int sequence = 0; sequence < run.num_sequences; sequence++) {
            const Sequence& own = run.sequences[sequence];
            const bool is_whole = sequence < run.num_sequences - run.only_keys;
            if (is_whole) whole_rows += (int)own.count;
            for (int64_t i = 0; i < own.count; i++) {
                if (is_whole && i >= own.count - own.wanted)
                    wanted.push_back((int)places.size());
                blocks.push_back(own.blocks);
                places.push_back(own.start + i);
            }
        }
    }

    void divide(const Decoder& decoder, const ForwardInput& run, int threads) {
        trace_back(run);
        if (run.only_keys == run.num_sequences) return;
        const auto add = [](auto& all, auto one) {
            if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
        };
        kv_heads.clear();
        for (int layer = 0; layer < run.layers; layer++)
            add(kv_heads, decoder.attention(layer).num_kv_heads);
        if (visibilities.size() < kv_heads.size()) visibilities.resize(kv_heads.size());
        for (const int heads : kv_heads) {
            Visibility& visibility = visibility_of(heads);
            const int heads_per_key = decoder.heads / heads;
            std::vector<int64_t> windows;
            for (int layer = 0; layer < run.layers; layer++)
                if (decoder.attention(layer).num_kv_heads == heads)
                    add(windows, (int64_t)decoder.layers[layer].window);
            visibility.build(run.sequences, run.num_sequences - run.only_keys, run.sees, windows,
                             heads, heads_per_key, threads);
            const size_t kept = (size_t)visibility.most_kept() * visibility.per_item *
                                ceil_div(heads_per_key, visibility.pieces) *
                                Average::size(head_dim_of(decoder, run.layers)) / LANES;
            if (averages.size() < kept) averages.resize(kept);
        }
    }

    Visibility& visibility_of(int heads) {
        return visibilities[std::find(kv_heads.begin(), kv_heads.end(), heads) - kv_heads.begin()];
    }

    void trace_back(const ForwardInput& run) {
        lineages.clear();
        if (!cache.row_size) return;
        lineages.resize(run.num_sequences);
        for (int i = 0, row = 0; i < run.num_sequences; row += (int)run.sequences[i++].count)
            lineages[i].read(run.sequences[i], row, run.sees[i]);
    }

    void reserve_experts(const Experts& experts, int hidden, int rows) {
        if (!experts.count) return;
        const size_t count = (size_t)rows * experts.all_per_row(),
                     width = (size_t)experts.most_tiles() * LANES;
        if (choices.size() < count) choices.resize(count);
        if (expert_gated.size() < count * width) expert_gated.resize(count * width);
        if (expert_mixed.size() < count * hidden) expert_mixed.resize(count * hidden);
        if (groups.size() < (size_t)most_groups(experts, rows))
            groups.resize(most_groups(experts, rows));
    }

    static int most_groups(const Experts& experts, int rows) {
        return std::min(rows * experts.per_row, experts.count) + experts.has_shared;
    }
};

class Forward final : public Job {
public:
    // Split for `threads`, though `team` may be more.
    Forward(const Decoder& decoder, const ForwardInput& run, Scratch& scratch, int threads,
            int team)
        : decoder(decoder),
          run(run),
          scratch(scratch),
          threads(threads),
          is_apart(scratch.is_apart),
          clock(run.seconds, team),
          mixed_width(scratch.mixed_width),
          cache(scratch.cache) {
        plan();
    }

    int phases() const override { return (int)list.size(); }
    int tasks(int phase) const override { return list[phase].tasks; }

    void perform(int number, int task) override {
        const Phase& phase = list[number];
        if (run.trace) return trace(number, phase, task);
        if (clock.is_on()) clock.stop(own_place(), WAITING);
        act(phase, task);
        if (clock.is_on()) clock.stop(own_place(), phase.part);
    }

    void end() {
        clock.end();
        for (const Lineage& lineage : scratch.lineages) mark_states(cache, lineage);
    }

private:
    // so that threads end together though some are slower
    static constexpr int TASKS_PER_THREAD = 2;

    struct Phase {
        void (Forward::*act)(Range, int layer);
        PhaseKind part;
        int layer, things, tasks;
    };

    const Decoder& decoder;
    const ForwardInput& run;
    Scratch& scratch;
    const int threads;
    const bool is_apart;
    PhaseClock clock;
    const int mixed_width;
    const bool in_bytes = decoder.has_byte_cache, in_halves = decoder.is_bfloat16 && !in_bytes,
               may_pair = HAS_PAIRS && in_halves;
    const CacheShape cache;
    std::vector<Phase> list;

    void act(const Phase& phase, int task) {
        const int64_t things = phase.things;
        (this->*phase.act)(
            {(int)(things * task / phase.tasks), (int)(things * (task + 1) / phase.tasks)},
            phase.layer);
    }

    void trace(int number, const Phase& phase, int task) {
        if (is_apart && task % TASKS_PER_THREAD == 0)  // another of the threads that are not there
            scratch.own[own_place()]->forget();
        Lap lap;
        act(phase, task);
        run.trace->add(number, phase.part, lap());
    }

    void plan() {
        list.reserve(11 * run.layers + 4);
        add_phase(&Forward::begin, NORMS, 0, decoder.fusion ? blocks(run.rows) : run.rows);
        if (joins_inputs(decoder, run))
            add_phase(&Forward::combine, PRODUCTS, 0, tiles(decoder.fusion->matrix));
        if (decoder.inputs.size && whole()) plan_inputs();
        for (int index = run.start; index < run.stop; index++) {
            if (run.attention[index]) plan_attention(index);
            else if (run.hidden[index]) add_phase(&Forward::put_hidden, NORMS, index, run.rows);
            if (!whole()) continue;
            if (!run.mlp[index]) continue;
            const Layer& layer = decoder.layers[index];
            if (layer.gate.outputs) plan_mlp(index);
            if (layer.experts.count) plan_experts(index);
            if (layer.input.outputs) plan_input(index);
        }
        if (run.stop < run.layers) return add_phase(&Forward::put_hidden, NORMS, run.stop, run.rows);
        if (run.hidden[run.layers]) add_phase(&Forward::put_last_hidden, NORMS, 0, run.rows);
        if (scratch.wanted.empty()) return;
        if (!is_apart)
            add_phase(&Forward::norm_for_head, NORMS, 0, patches((int)scratch.wanted.size()));
        add_phase(&Forward::make_logits, PRODUCTS, 0, tiles(decoder.lm_head));
    }

    void plan_inputs() {
        if (!is_apart) add_phase(&Forward::encode_first, NORMS, 0, patches(whole()));
        add_phase(&Forward::project_inputs, PRODUCTS, 0, tiles(decoder.inputs.projection));
        add_phase(&Forward::embed_inputs, NORMS, 0, whole() * run.layers);
    }

    void plan_input(int index) {
        const Layer& layer = decoder.layers[index];
        if (!is_apart) add_phase(&Forward::encode_for_input, NORMS, index, patches(whole()));
        add_phase(&Forward::gate_input, PRODUCTS, index, ceil_div(layer.input_gate.outputs, GROUP));
        add_phase(&Forward::add_input, PRODUCTS, index, tiles(layer.input));
        add_phase(&Forward::add_normed_input, NORMS, index, whole());
    }

    void plan_attention(int index) {
        const Layer& layer = decoder.layers[index];
        if (!whole() && !layer.key.outputs) return;  // it adds nothing to the cache
        if (!is_apart)
            add_phase(&Forward::norm_for_attention, NORMS, index,
                      reads_pairs(index) ? blocks(run.rows) : patches(run.rows));
        else if (run.hidden[index]) add_phase(&Forward::put_hidden, NORMS, index, run.rows);
        add_narrowing(&Forward::narrow_for_attention, index, QUERY, VALUE);
        add_phase(&Forward::project, PRODUCTS, index,
                  tiles_of_queries(layer) + tiles(layer.key) + tiles(layer.value));
        if (const int units = layer.recurrence.key_heads) {
            add_phase(&Forward::scan, ATTENTION, index, run.num_sequences * units);
            if (layer.recurrence.skips && whole())
                add_phase(&Forward::norm_scanned, NORMS, index, whole());
        } else {
            add_phase(&Forward::store_keys_and_values, NORMS, index, run.rows);
            if (!whole()) return;
            add_phase(&Forward::attend, ATTENTION, index,
                      visibility(index).things(layer.window));
        }
        if (!is_apart)
            add_phase(&Forward::encode_attended, NORMS, index,
                      blocks(whole()) * ceil_div(attended_width(decoder, index), GROUP));
        add_narrowing(&Forward::narrow_attended, index, OUTPUT, OUTPUT);
        add_phase(&Forward::add_attended, PRODUCTS, index, tiles(layer.output));
        if (layer.after_attention_norm.weight)
            add_phase(&Forward::add_normed_attention, NORMS, index, whole());
    }

    void plan_mlp(int index) {
        const Layer& layer = decoder.layers[index];
        // what attention read is still there
        if (!is_apart && (!decoder.is_parallel || !run.attention[index]))
            add_phase(&Forward::norm_for_network, NORMS, index, patches(whole()));
        add_narrowing(&Forward::narrow_for_network, index, GATE, UP);
        add_phase(&Forward::gate, PRODUCTS, index, ceil_div(layer.gate.outputs, GROUP));
        add_narrowing(&Forward::narrow_gated, index, DOWN, DOWN);
        add_phase(&Forward::add_gated, PRODUCTS, index, tiles(layer.down));
        if (layer.has_both()) add_phase(&Forward::set_network_aside, NORMS, index, whole());
        else if (layer.after_mlp_norm.weight)
            add_phase(&Forward::add_normed_mlp, NORMS, index, whole());
    }

    void plan_experts(int index) {
        const Experts& experts = decoder.layers[index].experts;
        const int choices = run.rows * experts.all_per_row(),
                  most = Scratch::most_groups(experts, run.rows);
        add_phase(&Forward::route, NORMS, index, run.rows);
        add_phase(&Forward::group_rows, NORMS, index, 1);
        add_phase(&Forward::encode_for_experts, NORMS, index, choices);
        add_phase(&Forward::gate_of_experts, PRODUCTS, index,
                  most * ceil_div(experts.most_tiles() * LANES, GROUP));
        add_phase(&Forward::mix_of_experts, PRODUCTS, index,
                  most * tiles(experts.networks[0].down));
        add_phase(&Forward::add_experts, NORMS, index, run.rows);
    }

    void add_narrowing(void (Forward::*act)(Range, int), int layer, LayerMatrix first,
                       LayerMatrix last) {
        if (const int ranks = scratch.marks.ranks(layer, first, last))
            add_phase(act, PRODUCTS, layer, ranks);
    }

    __attribute__((noinline)) void add_phase(void (Forward::*act)(Range, int), PhaseKind part,
                                             int layer, int things) {
        // shares of attention are less alike
        const int tasks = (part == ATTENTION ? 4 : 1) * TASKS_PER_THREAD * threads;
        list.push_back({act, part, layer, things, threads == 1 ? 1 : std::min(things, tasks)});
    }

    int whole() const { return scratch.whole_rows; }
    int tiles_of_queries(const Layer& layer) const { return whole() ? tiles(layer.query) : 0; }
    float* stream(int row) { return &scratch.stream[(size_t)row * decoder.hidden]; }
    float* branch(int row) { return &scratch.branch[(size_t)row * decoder.hidden]; }
    float* beside(int row) { return &scratch.beside[(size_t)row * decoder.hidden]; }
    float* gated(int row) { return &scratch.gated[(size_t)row * scratch.gated_width]; }
    // where the cosines and sines of a row in a table begin
    size_t rotation(int table, int row) const {
        return ((size_t)table * run.rows + row) * (decoder.rotary_dim / 2);
    }

    void begin(Range range, int) {
        const Range rows = decoder.fusion ? rows_of(range, run.rows) : range;
        for (int row = rows.first; row < rows.last; row++) {
            const int mark = scratch.marks.of(row);
            if (decoder.fusion) begin_head(row);
            else if (mark >= 0) begin_marked(row, mark);
            else if (run.stream) go_on(row);
            else embed(decoder, run.tokens[row], stream(row));
            for (int table = 0; table < decoder.rotaries; table++) begin_rotation(table, row);
            if (cache.row_size) keep_token(row);
        }
    }

    // So that tokens can be run again whose states are gone.
    void keep_token(int row) {
        const int64_t place = scratch.places[row];
        cache.tail(scratch.blocks[row][place / CACHE_BLOCK]).tokens[place % CACHE_BLOCK] =
            run.tokens[row];
    }

    // With the state with which the row stopped.
    void go_on(int row) {
        const float* from = run.stream + (size_t)row * decoder.hidden;
        std::copy(from, from + decoder.hidden, stream(row));
    }

    void begin_marked(int row, int mark) {
        const float* from = scratch.marks.vector(mark);
        std::copy(from, from + decoder.hidden, stream(row));
    }

    // The token stays aside until the first layer reads it.
    void begin_head(int row) {
        const FusionInput& fused = *run.fused;
        embed(decoder, run.tokens[row], branch(row));
        if (!decoder.fusion->reads)
            return encode(scratch.features, row, branch(row), decoder.hidden);
        if (decoder.fusion->joins_tokens) return join(row);
        if (fused.states) {
            std::copy(fused.states[row], fused.states[row] + decoder.hidden, stream(row));
            return;
        }
        const Fusion& fusion = *decoder.fusion;
        const int width = decoder.hidden;
        float* joined = row_of_floats(fusion.reads * width);
        for (int i = 0; i < fusion.reads; i++, joined += width) {
            read_state(fused, i, row, width, joined);
            if (fusion.norms) normed(decoder, joined, width, fusion.norms[i], false, joined);
        }
        encode(scratch.features, row, joined - fusion.reads * width, fusion.reads * width);
    }

    // A token and the state before it, each normed, for the product.
    void join(int row) {
        const FusionInput& fused = *run.fused;
        const Fusion& fusion = *decoder.fusion;
        const int width = decoder.hidden;
        float *token = row_of_floats(2 * width), *state = token + width;
        normed(decoder, branch(row), width, fusion.token_norm, false, token);
        if (fused.states) std::copy(fused.states[row], fused.states[row] + width, state);
        else read_state(fused, 0, row, width, state);
        normed(decoder, state, width, fusion.state_norm, false, state);
        encode(scratch.features, row, token, 2 * width);
    }

    void combine(Range tiles, int) {
        products(decoder.fusion->matrix, scratch.features, run.rows, tiles.first, tiles.last,
                 [&](int row, int tile, Floats values) {
                     put_tile(stream(row), tile, decoder.hidden, values);
                 });
    }

    void begin_rotation(int table, int row) {
        const int pairs = decoder.rotary_dim / 2;
        const float* frequencies = decoder.frequencies + (size_t)table * pairs;
        const float scale = decoder.rotary_scales[table];
        for (int i = 0; i < pairs; i++) {
            float angle = (float)run.positions[row] * frequencies[i];
            scratch.cosines[rotation(table, row) + i] = std::cos(angle) * scale;
            scratch.sines[rotation(table, row) + i] = std::sin(angle) * scale;
        }
    }

    void put_hidden(Range rows, int layer) {
        std::copy(stream(rows.first), stream(rows.last),
                  run.hidden[layer] + (size_t)rows.first * decoder.hidden);
    }

    void norm_for_attention(Range range, int layer) {
        const Norm& norm = decoder.layers[layer].attention_norm;
        if (reads_pairs(layer)) {
            const Range rows = rows_of(range, run.rows);
            if (run.hidden[layer]) put_hidden(rows, layer);
            for (int row = rows.first; row < rows.last; row++) pair(row, norm);
            return;
        }
        in_patches(range, run.rows, [&](Range rows, Range inputs) {
            for (int row = rows.first; run.hidden[layer] && row < rows.last; row++)
                std::copy(stream(row) + inputs.first, stream(row) + inputs.last,
                          run.hidden[layer] + (size_t)row * decoder.hidden + inputs.first);
            norm_rows(rows, norm, inputs);
        });
    }

    bool reads_pairs(int layer) const {
        const Fusion* fusion = decoder.fusion;
        return fusion && fusion->reads && !fusion->joins_tokens && layer == 0;
    }

    // A token and a state, each normed, side by side.
    void pair(int row, const Norm& token_norm) {
        const int width = decoder.hidden;
        float *token = row_of_floats(2 * width), *state = token + width;
        normed(decoder, branch(row), width, token_norm, false, token);
        normed(decoder, stream(row), width, decoder.fusion->state_norm, false, state);
        if (decoder.fusion->starts_normed) std::copy(state, state + width, stream(row));
        encode(scratch.paired, row, token, 2 * width);
    }

    void norm_for_network(Range range, int layer) {
        in_patches(range, whole(), [&](Range rows, Range inputs) {
            norm_rows(rows, decoder.layers[layer].mlp_norm, inputs);
        });
    }

    void encode_for_input(Range range, int) { encode_stream(range); }
    void encode_first(Range range, int) { encode_stream(range); }

    void encode_stream(Range range) {
        in_patches(range, whole(), [&](Range rows, Range inputs) { norm_rows(rows, {}, inputs); });
    }

    void project_inputs(Range tiles, int) {
        const LayerInputs& inputs = decoder.inputs;
        const int width = inputs.projection.outputs;
        products(inputs.projection, first_rows(), whole(), tiles.first, tiles.last,
                 [&](int row, int tile, Floats values) {
                     put_tile(&scratch.inputs[(size_t)row * width], tile, width,
                              values * all(inputs.scale));
                 });
    }

    // Parts of layers, row by row.
    void embed_inputs(Range range, int) {
        const LayerInputs& inputs = decoder.inputs;
        const int size = inputs.size, width = run.layers * size;
        const float* embedded = nullptr;
        for (int i = range.first, last = -1; i < range.last; i++) {
            const int row = i / run.layers, layer = i % run.layers;
            if (row != last) embedded = embed_for_layers(row, width), last = row;
            float* const part = &scratch.inputs[(size_t)row * width + layer * size];
            normed(decoder, part, size, inputs.norm, false, part);
            for (int j = 0; j < size; j++)
                part[j] = (part[j] + embedded[layer * size + j]) * (float)M_SQRT1_2;
        }
    }

    const float* embed_for_layers(int row, int width) {
        float* const embedded = row_of_floats(width);
        read_stored(*decoder.inputs.embedding, run.tokens[row], embedded);
        for (int i = 0; i < width; i++) embedded[i] *= decoder.inputs.embedding_scale;
        return embedded;
    }

    // A layer's part, gated by the stream; groups of 32 as in gate().
    void gate_input(Range groups, int index) {
        const Matrix& matrix = decoder.layers[index].input_gate;
        const int size = decoder.inputs.size, stride = run.layers * size,
                  per_group = GROUP / LANES;
        products(matrix, for_input(index), whole(), groups.first * per_group,
                 std::min(groups.last * per_group, tiles(matrix)),
                 [&](int row, int tile, Floats values) {
                     put_tile(gated(row), tile, size, decoder.gating.gate(values));
                 });
        encode_blocks(scratch.wide, {0, whole()},
                      {groups.first * GROUP, std::min(groups.last * GROUP, size)},
                      [&](int row, int from, int width) {
                          const float* const part =
                              &scratch.inputs[(size_t)row * stride + index * size + from];
                          float* const to = gated(row) + from;
                          for (int i = 0; i < width; i++) to[i] *= part[i];
                          return to;
                      });
    }

    void add_input(Range tiles, int index) {
        products(decoder.layers[index].input, scratch.wide, whole(), tiles.first, tiles.last,
                 [&](int row, int tile, Floats values) {
                     put_tile(branch(row), tile, decoder.hidden, values);
                 });
    }

    void add_normed_input(Range rows, int index) {
        const Layer& layer = decoder.layers[index];
        add_normed(rows, layer.after_input_norm, layer.scale);
    }

    // What a network gave, until the experts beside it are done.
    void set_network_aside(Range rows, int index) {
        for (int row = rows.first; row < rows.last; row++)
            normed(decoder, branch(row), decoder.hidden, decoder.layers[index].after_network_norm,
                   false, beside(row));
    }

    void norm_for_head(Range range, int) {
        const auto row_of = [&](int i) { return scratch.wanted[i]; };
        in_patches(range, (int)scratch.wanted.size(), [&](Range rows, Range inputs) {
            encode_normed(scratch.narrow, rows, decoder.norm, inputs, row_of,
                          [&](int i, int from, int width, const float* values) {
                              if (!decoder.fusion || !decoder.fusion->reads) return;
                              // what the head reads in place of its target's states
                              if (!decoder.fusion->feeds_normed) values = stream(row_of(i)) + from;
                              std::copy(values, values + width,
                                        run.fused->results + (size_t)i * decoder.hidden + from);
                          });
        });
    }

    // What products read, whoever encodes it.
    const Rows& for_attention(int layer) {
        const Norm& norm = decoder.layers[layer].attention_norm;
        return normed_rows(3 * layer, norm, run.rows, [](int row) { return row; });
    }
    const Rows& for_network(int layer) {
        const Norm& norm = decoder.layers[layer].mlp_norm;
        return normed_rows(3 * layer + 1, norm, whole(), [](int row) { return row; });
    }
    const Rows& for_input(int layer) {
        return normed_rows(3 * layer + 2, {}, whole(), [](int row) { return row; });
    }
    const Rows& for_head() {
        return normed_rows(3 * run.layers, decoder.norm, (int)scratch.wanted.size(),
                           [&](int i) { return scratch.wanted[i]; });
    }
    // What enters the first layer.
    const Rows& first_rows() {
        return normed_rows(3 * run.layers + 1, {}, whole(), [](int row) { return row; });
    }

    // Rows of the stream, normed, for the calling thread; `of` tells those of a pass apart.
    template <class RowOf>
    const Rows& normed_rows(int of, const Norm& norm, int count, RowOf row_of) {
        if (!is_apart) return scratch.narrow;
        OwnRows& own = *scratch.own[own_place()];
        if (own.normed_of == of) return own.normed;
        own.normed_of = of;
        encode_normed(own.normed, {0, count}, norm, {0, decoder.hidden}, row_of,
                      [](int, int, int, const float*) {});
        return own.normed;
    }

    const Rows& attended(int layer) {
        if (!is_apart) return scratch.attention;
        OwnRows& own = *scratch.own[own_place()];
        if (own.attended_of == layer) return own.attended;
        own.attended_of = layer;
        const int width = attended_width(decoder, layer);
        encode_attended(own.attended, {0, whole()}, {0, width}, width);
        return own.attended;
    }

    // Some inputs of rows of the stream, normed, become rows of what products read.
    void norm_rows(Range rows, const Norm& norm, Range inputs) {
        encode_normed(scratch.narrow, rows, norm, inputs, [](int row) { return row; },
                      [&](int row, int from, int width, const float* values) {
                          if (const int mark = scratch.marks.of(row); mark >= 0)
                              std::copy(values, values + width, scratch.marks.input(mark) + from);
                      });
    }

    // Row i is row_of(i) of the stream; see(i, from, width, values) may look at what is encoded.
    template <class RowOf, class See>
    void encode_normed(Rows& to, Range rows, const Norm& norm, Range inputs, RowOf row_of,
                       See see) {
        float normed[MOST_ROWS][GROUP];
        RowScale scales[MOST_ROWS];
        for (int block = rows.first; block < rows.last; block += MOST_ROWS) {
            const Range some{block, std::min(block + MOST_ROWS, rows.last)};
            for (int i = some.first; norm.weight && i < some.last; i++)
                scales[i - block] = scale_of(decoder, stream(row_of(i)), decoder.hidden,
                                             decoder.is_layer_norm);
            encode_blocks(to, some, inputs, [&](int i, int from, int width) {
                const float *values = stream(row_of(i)), *results = values + from;
                if (norm.weight) {
                    put_normed(values, from, from + width, norm, scales[i - block],
                               normed[i - block] - from);
                    results = normed[i - block];
                }
                see(i, from, width, results);
                return results;
            });
        }
    }

    // Rows lie eight side by side for products, so a thread that encodes takes a block of eight, or
    // where there are few blocks a piece of its inputs: two that write one line wait for each other.
    static int blocks(int rows) { return ceil_div(rows, MOST_ROWS); }
    int pieces(int rows) const {
        const bool is_shared = rows > 1 && threads > 1;
        return is_shared ? ceil_div(TASKS_PER_THREAD * threads, blocks(rows)) : 1;
    }
    int patches(int rows) const { return blocks(rows) * pieces(rows); }

    static Range rows_of(Range blocks, int rows) {
        return {blocks.first * MOST_ROWS, std::min(blocks.last * MOST_ROWS, rows)};
    }

    // act(rows, inputs) for the rows of each patch and the inputs that lie there.
    template <class Act>
    void in_patches(Range patches, int rows, Act act) const {
        const int count = pieces(rows), groups = ceil_div(decoder.hidden, GROUP);
        for (int patch = patches.first; patch < patches.last; patch++) {
            const int block = patch / count, piece = patch % count;
            const Range own = rows_of({block, block + 1}, rows),
                        inputs{groups * piece / count * GROUP,
                               std::min(groups * (piece + 1) / count * GROUP, decoder.hidden)};
            act(own, inputs);
        }
    }

    void narrow_for_attention(Range ranks, int layer) {
        narrow(ranks, layer, QUERY, VALUE,
               [&](int, int mark) { return scratch.marks.input(mark); });
    }
    void narrow_attended(Range ranks, int layer) {
        const size_t width = attended_width(decoder, layer);
        narrow(ranks, layer, OUTPUT, OUTPUT,
               [&](int row, int) { return &scratch.attended[row * width]; });
    }
    void narrow_for_network(Range ranks, int layer) {
        narrow(ranks, layer, GATE, UP, [&](int, int mark) { return scratch.marks.input(mark); });
    }
    void narrow_gated(Range ranks, int layer) {
        const size_t width = scratch.gated_width;
        narrow(ranks, layer, DOWN, DOWN,
               [&](int row, int) { return &scratch.gated[row * width]; });
    }

    template <class Inputs>
    void narrow(Range ranks, int layer, LayerMatrix first, LayerMatrix last, Inputs input_of) {
        scratch.marks.narrow(layer, first, last, ranks.first, ranks.last, input_of);
    }

    // Queries, keys and values lie side by side.
    void project(Range range, int index) {
        const Layer& layer = decoder.layers[index];
        const Rows& rows = reads_pairs(index) ? scratch.paired : for_attention(index);
        int first = 0, width = 0;
        for (const LayerMatrix which : {QUERY, KEY, VALUE}) {
            const bool is_query = which == QUERY;
            const Matrix* matrix = is_query ? &layer.query : which == KEY ? &layer.key : &layer.value;
            const int from = std::max(range.first - first, 0),
                      own_tiles = is_query ? tiles_of_queries(layer) : tiles(*matrix),
                      to = std::min(range.last - first, own_tiles);
            products(*matrix, rows, is_query ? whole() : run.rows, from, to,
                     [&](int row, int tile, Floats values) {
                         put_tile(&scratch.mixed[(size_t)row * mixed_width + width], tile,
                                  matrix->outputs,
                                  scratch.marks.added(index, which, row, tile, values));
                     });
            first += own_tiles, width += matrix->outputs;
        }
    }

    void add_attended(Range tiles, int index) {
        const Layer& layer = decoder.layers[index];
        add(layer.output, attended(index), layer.after_attention_norm, tiles, index, OUTPUT);
    }
    void add_gated(Range tiles, int index) {
        const Layer& layer = decoder.layers[index];
        const Norm& norm = layer.has_both() ? layer.after_network_norm : layer.after_mlp_norm;
        add(layer.down, scratch.wide, norm, tiles, index, DOWN);
    }

    // To the stream, or aside where all of a row is normed before.
    void add(const Matrix& matrix, const Rows& rows, const Norm& norm_before, Range tiles,
             int index, LayerMatrix which) {
        const bool aside = norm_before.weight;
        products(matrix, rows, whole(), tiles.first, tiles.last,
                 [&](int row, int tile, Floats values) {
                     values = scratch.marks.added(index, which, row, tile, values);
                     if (aside) return put_tile(branch(row), tile, decoder.hidden, values);
                     float* to = stream(row);
                     values = values * all(decoder.residual_scale);
                     if ((tile + 1) * LANES <= decoder.hidden)
                         return store(to + tile * LANES, load(to + tile * LANES) + values);
                     for (int i = tile * LANES; i < decoder.hidden; i++)
                         to[i] += values[i - tile * LANES];
                 });
    }

    void add_normed_attention(Range rows, int layer) {
        add_normed(rows, decoder.layers[layer].after_attention_norm, 0);
    }
    void add_normed_mlp(Range rows, int layer) {
        add_normed(rows, decoder.layers[layer].after_mlp_norm, scale_behind_network(layer));
    }

    // Of the stream, where nothing more of the layer comes.
    float scale_behind_network(int layer) const {
        return decoder.layers[layer].input.outputs ? 0 : decoder.layers[layer].scale;
    }

    // What was put aside; then the stream is scaled, unless by 0.
    void add_normed(Range rows, const Norm& norm, float scale) {
        for (int row = rows.first; row < rows.last; row++) {
            normed(decoder, branch(row), decoder.hidden, norm, decoder.is_layer_norm, branch(row));
            for (int i = 0; i < decoder.hidden; i++)
                stream(row)[i] += branch(row)[i] * decoder.residual_scale;
            for (int i = 0; scale != 0 && i < decoder.hidden; i++) stream(row)[i] *= scale;
        }
    }

    void store_keys_and_values(Range rows, int index) {
        const Layer& layer = decoder.layers[index];
        const AttentionShape own = decoder.attention(index);
        const int dim = own.head_dim, kv_heads = layer.key.outputs ? own.num_kv_heads : 0;
        const bool is_encoded = in_bytes || in_pairs(dim);
        for (int row = rows.first; row < rows.last; row++) {
            float* head = &scratch.mixed[(size_t)row * mixed_width];
            if (kv_heads) find_values(index, row);
            if (decoder.norms_whole_vectors) norm_all_heads(layer, head, keys_of(layer, row));
            const float scale = attention_scale(row);
            for (int i = 0; i < decoder.heads + kv_heads; i++, head += dim) {
                bool is_query = i < decoder.heads;
                if (i == decoder.heads) head = keys_of(layer, row);
                if (is_query && row >= whole()) continue;
                const Norm& norm = is_query ? layer.query_norm : layer.key_norm;
                if (norm.weight && !decoder.norms_whole_vectors)
                    normed(decoder, head, dim, norm, false, head);
                if (layer.rotary >= 0)
                    rotate(head, own.rotary_dim, &scratch.cosines[rotation(layer.rotary, row)],
                           &scratch.sines[rotation(layer.rotary, row)]);
                if (is_query)
                    for (int j = 0; j < dim; j++) head[j] *= scale;
            }
            const float* queries = &scratch.mixed[(size_t)row * mixed_width];
            for (int i = 0; is_encoded && row < whole() && i < decoder.heads; i++)
                encode_query(queries + i * dim, dim, encoded_query(row, i));
            if (!kv_heads) continue;
            const float* keys = keys_of(layer, row);
            store_heads(keys, index, false, row);
            store_heads(keys + kv_heads * dim, index, true, row);
        }
    }

    // Those of a layer without a product for them, and their norm.
    void find_values(int index, int row) {
        const Layer& layer = decoder.layers[index];
        float *keys = keys_of(layer, row), *values = keys + layer.key.outputs;
        if (!layer.value.outputs) std::copy(keys, values, values);
        const AttentionShape own = decoder.attention(index);
        const int dim = own.head_dim, heads = layer.value_norm.weight ? own.num_kv_heads : 0;
        for (int i = 0; i < heads; i++, values += dim)
            normed(decoder, values, dim, layer.value_norm, false, values);
    }

    // Queries lie before them, and the queries' gate where they have one.
    float* keys_of(const Layer& layer, int row) {
        return &scratch.mixed[(size_t)row * mixed_width + layer.query.outputs];
    }

    // Of a row's scores.
    float attention_scale(int row) const {
        if (decoder.query_growth == 0) return decoder.attention_scale;
        const float part = std::floor(run.positions[row] / decoder.growth_every);
        return decoder.attention_scale * (1 + decoder.query_growth * std::log(1 + part));
    }

    void encode_query(const float* query, int dim, uint32_t* encoded) {
        if (in_bytes) encode_byte_query(query, dim, encoded);
        else round_query(query, dim, (bfloat16*)encoded);
    }

    // Keys or values of a row.
    void store_heads(const float* numbers, int index, bool value, int row) {
        const AttentionShape own = decoder.attention(index);
        const CacheLayer stored = cache.layer(cached(index));
        const int dim = own.head_dim, heads = own.num_kv_heads;
        const int64_t place = scratch.places[row], within = place % CACHE_BLOCK;
        uint8_t *block = scratch.blocks[row][place / CACHE_BLOCK],
                *to = block + cache.at(cached(index), value, 0) + within * stored.place_bytes();
        for (int head = 0; in_bytes && head < heads; head++)
            ((float*)(block + cache.scales_at(cached(index), value, head)))[within] = encode_row(
                numbers + head * dim, dim, value ? 0 : KEY_ZERO, to + head * stored.row_bytes);
        if (in_halves) put_all(numbers, heads * dim, (bfloat16*)to);
        else if (!in_bytes) put_all(numbers, heads * dim, (float*)to);
    }

    template <class Number>
    static void put_all(const float* numbers, int count, Number* to) {
        for (int i = 0; i < count; i++) put(to + i, numbers[i]);
    }

    // Queries and keys of a row, each across all heads.
    void norm_all_heads(const Layer& layer, float* queries, float* keys) {
        normed(decoder, queries, layer.query.outputs, layer.query_norm, false, queries);
        normed(decoder, keys, layer.key.outputs, layer.key_norm, false, keys);
    }

    bool in_pairs(int head_dim) const { return may_pair && fits_pairs(head_dim); }
    int heads_per_key(int index) const {
        return decoder.heads / decoder.attention(index).num_kv_heads;
    }
    Visibility& visibility(int index) const {
        return scratch.visibility_of(decoder.attention(index).num_kv_heads);
    }
    int cached(int index) const { return decoder.layers[index].cached; }

    // Some rows, and heads that share keys.
    struct AttentionUnit {
        RowGroup group;
        int shared, first_head, heads;  // whose keys; the first of the heads
        int64_t window;
    };

    // Where averages of rows and heads lie.
    struct Averages {
        float* first;
        int stride;  // from row to row

        Together over(const AttentionUnit& unit, int64_t block, float score_cap = 0) const {
            return {unit.group, (int)block, unit.heads, unit.window, first, stride, score_cap};
        }
    };

    void attend(Range things, int index) {
        Visibility& visibility = this->visibility(index);
        const int64_t window = decoder.layers[index].window;
        const Visibility::Plan& plan = visibility.plan(window);
        const int per_key = heads_per_key(index);
        const int pieces = visibility.pieces, per_item = visibility.per_item;
        static thread_local Bench bench;
        for (int thing = things.first; thing < things.last; thing++) {
            const Visibility::Item& item = plan.items[thing / per_item];
            const int part = thing % per_item, piece = part % pieces, shared = part / pieces,
                      first = per_key * piece / pieces, last = per_key * (piece + 1) / pieces;
            AttentionUnit unit{visibility.together(item), shared, shared * per_key + first,
                               last - first, window};
            if (item.block == Visibility::ALL_BLOCKS) {
                attend_all(unit, index, plan.blocks[item.first], bench);
                continue;
            }
            attend_block(unit, index, item.block, kept(plan, index, item.first, item.block, part),
                         bench);
            for (int group = item.first; group < item.last; group++) {
                const Stretch& blocks = plan.blocks[group];
                if (!visibility.is_last((size_t)group * per_item + part, blocks.last - blocks.first))
                    continue;
                unit.group = visibility.groups[group];
                const Averages joined = room(bench.joined, unit, index);
                for (int64_t block = blocks.first; block < blocks.last; block++)
                    join(unit, index, block, kept(plan, index, group, block, part), joined);
                put_attended(unit, index, joined);
            }
        }
    }

    // Key heads of sequences, in the place of attention.
    void scan(Range things, int index) {
        const Recurrence& layer = decoder.layers[index].recurrence;
        static thread_local ScanBench bench;
        for (int thing = things.first; thing < things.last; thing++) {
            const Lineage& lineage = scratch.lineages[thing / layer.key_heads];
            const size_t row = lineage.first_row, width = layer.width();
            Scan(layer, decoder.epsilon, thing % layer.key_heads, cache, lineage,
                 &scratch.mixed[row * mixed_width], mixed_width, &scratch.attended[row * width],
                 width, bench)
                .run();
        }
    }

    // What heads with skips gave together, gated and normed.
    void norm_scanned(Range rows, int index) {
        const Recurrence& layer = decoder.layers[index].recurrence;
        const int size = layer.width() / layer.norm_groups;
        for (int row = rows.first; row < rows.last; row++) {
            float* const given = &scratch.attended[(size_t)row * layer.width()];
            const float* const gate =
                &scratch.mixed[(size_t)row * mixed_width + layer.fed_width()];
            for (int i = 0; i < layer.width(); i += LANES)
                store(given + i, load(given + i) * silu(load(gate + i)));
            for (int from = 0; from < layer.width(); from += size)
                normed(decoder, given + from, size, {layer.norm + from, nullptr}, false,
                       given + from);
        }
    }

    void attend_all(const AttentionUnit& unit, int index, const Stretch& blocks, Bench& bench) {
        const Averages averages = room(bench.averages, unit, index),
                       joined = room(bench.joined, unit, index);
        for (int64_t block = blocks.first; block < blocks.last; block++) {
            attend_block(unit, index, block, averages, bench);
            join(unit, index, block, averages, joined);
        }
        put_attended(unit, index, joined);
    }

    Averages room(std::vector<Floats>& values, const AttentionUnit& unit, int index) const {
        const size_t size =
            unit.group.count * unit.heads * Average::size(decoder.attention(index).head_dim);
        return {Bench::room(values, size), unit.heads};
    }

    // A group's averages over one block, of one part of the heads.
    Averages kept(const Visibility::Plan& plan, int index, int group, int64_t block, int part) {
        const Visibility& visibility = this->visibility(index);
        const int heads = ceil_div(heads_per_key(index), visibility.pieces);
        const size_t before = plan.kept_at(group, block) * visibility.per_item + part;
        return {(float*)scratch.averages.data() +
                    before * heads * Average::size(decoder.attention(index).head_dim),
                visibility.per_item * heads};
    }

    void attend_block(const AttentionUnit& unit, int index, int64_t block, const Averages& averages,
                      Bench& bench) {
        const Visibility& visibility = this->visibility(index);
        const Together some = averages.over(unit, block, decoder.score_cap);
        const size_t dim = decoder.attention(index).head_dim;
        if (in_bytes)
            return attend_block_in_bytes(visibility, some,
                                         {stored<uint8_t>(unit, index),
                                          stored<float>(unit, index, &CacheShape::scales_at, 1)},
                                         encoded_queries(unit), bench);
        if constexpr (HAS_PAIRS)
            if (in_pairs((int)dim))
                return attend_block_in_pairs(visibility, some, stored<bfloat16>(unit, index),
                                             encoded_queries(unit), bench);
        const Queries<float> queries{&scratch.mixed[unit.first_head * dim], (size_t)mixed_width,
                                     dim};
        if (in_halves)
            draftwood::attend_block(visibility, some, stored<bfloat16>(unit, index), queries,
                                    bench);
        else draftwood::attend_block(visibility, some, stored<float>(unit, index), queries, bench);
    }

    // A unit's keys and values, or their scales, which lie `stride` apart.
    template <class Number>
    KeysAndValues<Number> stored(const AttentionUnit& unit, int index,
                                 size_t (CacheShape::*at)(int, bool, int) const,
                                 size_t stride) const {
        const auto half = [&](bool value) {
            return Stored<Number>{unit.group.blocks, (cache.*at)(cached(index), value, unit.shared),
                                  stride};
        };
        return {half(false), half(true), decoder.attention(index).head_dim};
    }

    template <class Number>
    KeysAndValues<Number> stored(const AttentionUnit& unit, int index) const {
        return stored<Number>(unit, index, &CacheShape::at,
                              cache.layer(cached(index)).place_bytes() / sizeof(Number));
    }

    Queries<uint32_t> encoded_queries(const AttentionUnit& unit) {
        const size_t words = scratch.query_words;
        return {encoded_query(0, unit.first_head), decoder.heads * words, words};
    }

    uint32_t* encoded_query(int row, int head) {
        return &scratch.encoded_queries[((size_t)row * decoder.heads + head) * scratch.query_words];
    }

    void join(const AttentionUnit& unit, int index, int64_t block, const Averages& averages,
              const Averages& joined) {
        const int dim = decoder.attention(index).head_dim;
        const Visibility& visibility = this->visibility(index);
        const Together one = averages.over(unit, block), all = joined.over(unit, block);
        for (int row = unit.group.first; row < unit.group.first + unit.group.count; row++) {
            if (one.seen(visibility, row).empty()) continue;
            const bool is_first = visibility.seen(row, unit.window).first / BLOCK == block;
            for (int head = 0; head < unit.heads; head++)
                all.average(row, head, dim).join(one.average(row, head, dim), is_first);
        }
    }

    void put_attended(const AttentionUnit& unit, int index, const Averages& joined) {
        const Layer& layer = decoder.layers[index];
        const int dim = decoder.attention(index).head_dim;
        const bool gated = is_gated(decoder, index);
        const Together all = joined.over(unit, 0);
        for (int row = unit.group.first; row < unit.group.first + unit.group.count; row++)
            for (int head = 0; head < unit.heads; head++) {
                const int from = (unit.first_head + head) * dim;
                float* results = &scratch.attended[(size_t)row * decoder.heads * dim + from];
                const Average average = all.average(row, head, dim);
                if (layer.sinks) average.add_sink(layer.sinks[unit.first_head + head]);
                (in_pairs(dim) ? finish_pairs : finish)(average, results);
                if (gated) gate_attended(row, from, dim, results);
            }
    }

    // A head's, by the gate that lies behind all queries.
    void gate_attended(int row, int from, int dim, float* results) {
        const float* gate = &scratch.mixed[(size_t)row * mixed_width + decoder.heads * dim + from];
        for (int i = 0; i < dim; i++) results[i] /= 1 + std::exp(-gate[i]);
    }

    // Groups of blocks of rows.
    void encode_attended(Range groups, int index) {
        const int width = attended_width(decoder, index),
                  of_row = ceil_div(width, GROUP);
        for (int group = groups.first; group < groups.last; group++) {
            const int block = group / of_row, from = group % of_row * GROUP;
            encode_attended(scratch.attention, rows_of({block, block + 1}, whole()),
                            {from, std::min(from + GROUP, width)}, width);
        }
    }

    void encode_attended(Rows& to, Range rows, Range inputs, size_t width) {
        encode_blocks(to, rows, inputs, [&](int row, int from, int) {
            return &scratch.attended[row * width + from];
        });
    }

    // The gated network up to its last product. A thread makes whole groups of 32, which are
    // encoded at once.
    void gate(Range groups, int index) {
        const Layer& layer = decoder.layers[index];
        const int width = layer.gate.outputs, per_group = GROUP / LANES;
        const int first = groups.first * per_group,
                  last = std::min(groups.last * per_group, tiles(layer.gate));
        const Rows& rows = for_network(index);
        products(layer.gate, rows, whole(), first, last,
                 [&](int row, int tile, Floats values) {
                     values = scratch.marks.added(index, GATE, row, tile, values);
                     store(gated(row) + tile * LANES, decoder.gating.gate(values));
                 });
        if (layer.up.outputs)  // else nothing is gated, and this is all
            products(layer.up, rows, whole(), first, last,
                     [&](int row, int tile, Floats values) {
                         values = scratch.marks.added(index, UP, row, tile, values);
                         float* to = gated(row) + tile * LANES;
                         store(to, load(to) * decoder.gating.gated(values));
                     });
        encode_blocks(scratch.wide, {0, whole()},
                      {groups.first * GROUP, std::min(groups.last * GROUP, width)},
                      [&](int row, int from, int) { return gated(row) + from; });
    }

    // A row, normed, stays aside in floats until it is encoded for its experts.
    void route(Range rows, int index) {
        const Layer& layer = decoder.layers[index];
        const Norm& norm = layer.has_both() ? layer.experts_norm : layer.mlp_norm;
        for (int row = rows.first; row < rows.last; row++) {
            normed(decoder, stream(row), decoder.hidden, norm, decoder.is_layer_norm, branch(row));
            choose_experts(layer.experts, routed(layer.experts, row), decoder.hidden,
                           &scratch.choices[(size_t)row * layer.experts.all_per_row()]);
        }
    }

    // What chooses a row's experts.
    const float* routed(const Experts& experts, int row) {
        if (!experts.router_norm) return branch(row);
        float* const read = row_of_floats(decoder.hidden);
        normed(decoder, stream(row), decoder.hidden, {experts.router_norm, nullptr}, false, read);
        return read;
    }

    void group_rows(Range, int index) {
        const Experts& experts = decoder.layers[index].experts;
        scratch.num_groups =
            group_by_expert(scratch.choices, (size_t)run.rows * experts.all_per_row(),
                            experts.all(), scratch.groups);
        for (int i = 0; i < scratch.num_groups; i++) {
            ExpertRows& group = scratch.groups[i];
            const int rows = (int)group.choices.size();
            group.narrow.reserve(decoder.encodings, rows, decoder.hidden);
            group.wide.reserve(decoder.encodings, rows,
                               experts.networks[group.expert].gate.outputs);
        }
    }

    void encode_for_experts(Range choices, int index) {
        const int per_row = decoder.layers[index].experts.all_per_row();
        for (int i = choices.first; i < choices.last; i++) {
            const Choice& choice = scratch.choices[i];
            encode(scratch.groups[choice.group].narrow, choice.place, branch(i / per_row),
                   decoder.hidden);
        }
    }

    // Tasks go through all experts at some places, not through all places of some experts, for how
    // many there are is known only now.
    void gate_of_experts(Range tasks, int index) {
        const Experts& experts = decoder.layers[index].experts;
        const int most = Scratch::most_groups(experts, run.rows), per_group = GROUP / LANES;
        for (int task = tasks.first; task < tasks.last; task++) {
            if (task % most >= scratch.num_groups) continue;
            ExpertRows& group = scratch.groups[task % most];
            const Expert& expert = experts.networks[group.expert];
            const int first = task / most * per_group,
                      last = std::min(first + per_group, tiles(expert.gate));
            if (first < last) gate_tiles(experts, expert, group, first, last);
        }
    }

    void gate_tiles(const Experts& experts, const Expert& expert, ExpertRows& group, int first,
                    int last) {
        const int width = expert.gate.outputs, padded = experts.most_tiles() * LANES,
                  rows = (int)group.choices.size(), from = first * LANES;
        auto gated = [&](int row) {
            return &scratch.expert_gated[(size_t)group.choices[row] * padded];
        };
        products(expert.gate, group.narrow, rows, first, last,
                 [&](int row, int tile, Floats values) {
                     store(gated(row) + tile * LANES, decoder.gating.gate(values));
                 });
        if (expert.up.outputs)
            products(expert.up, group.narrow, rows, first, last,
                     [&](int row, int tile, Floats values) {
                         float* to = gated(row) + tile * LANES;
                         store(to, load(to) * decoder.gating.gated(values));
                     });
        for (int row = 0; row < rows; row++)
            group.wide.encode(row, from, gated(row) + from, std::min(GROUP, width - from));
    }

    void mix_of_experts(Range tasks, int index) {
        const Experts& experts = decoder.layers[index].experts;
        const int most = Scratch::most_groups(experts, run.rows);
        for (int task = tasks.first; task < tasks.last; task++) {
            if (task % most >= scratch.num_groups) continue;
            ExpertRows& group = scratch.groups[task % most];
            const int tile = task / most;
            products(experts.networks[group.expert].down, group.wide, (int)group.choices.size(),
                     tile, tile + 1, [&](int row, int, Floats values) {
                         const int choice = group.choices[row];
                         float* to = &scratch.expert_mixed[(size_t)choice * decoder.hidden];
                         put_tile(to, tile, decoder.hidden, values * scratch.choices[choice].share);
                     });
        }
    }

    void add_experts(Range rows, int index) {
        const Layer& layer = decoder.layers[index];
        const int per_row = layer.experts.all_per_row(), hidden = decoder.hidden;
        for (int row = rows.first; row < rows.last; row++) {
            const float* const given = &scratch.expert_mixed[(size_t)row * per_row * hidden];
            float* const to = layer.has_both() ? branch(row) : stream(row);
            const float factor = layer.has_both() ? 1 : decoder.residual_scale;
            for (int i = 0; i < hidden; i++) {
                float total = 0;
                for (int j = 0; j < per_row; j++) total += given[j * hidden + i];
                to[i] = (layer.has_both() ? 0 : to[i]) + total * factor;
            }
        }
        if (layer.has_both()) add_both(rows, index);
    }

    // What experts gave, normed, and what the network beside them did.
    void add_both(Range rows, int index) {
        const Layer& layer = decoder.layers[index];
        for (int row = rows.first; row < rows.last; row++) {
            float* const given = branch(row);
            normed(decoder, given, decoder.hidden, layer.after_experts_norm, false, given);
            for (int i = 0; i < decoder.hidden; i++) given[i] += beside(row)[i];
        }
        add_normed_mlp(rows, index);
    }

    // As Transformers has it: the last hidden state is behind the norm.
    void put_last_hidden(Range rows, int) {
        for (int row = rows.first; row < rows.last; row++)
            normed(decoder, stream(row), decoder.hidden, decoder.norm, decoder.is_layer_norm,
                   run.hidden[run.layers] + (size_t)row * decoder.hidden);
    }

    void make_logits(Range tiles, int) {
        const int count = (int)scratch.wanted.size(), width = decoder.lm_head.outputs;
        products(decoder.lm_head, for_head(), count, tiles.first, tiles.last,
                 [&](int row, int tile, Floats values) {
                     put_tile(run.logits + (size_t)row * width, tile, width,
                              bounded(decoder, values));
                 });
    }
};

}  // namespace

// What runs need, one at a time.
struct Workshop {
    std::mutex busy;  // whoever waits for it sleeps
    Team team;
    Scratch scratch;
};

namespace {

// Runs of one workshop take turns; those of the other, where models draft, go on beside them.
struct Workshops {
    Workshop usual, beside;
};

Workshops* workshops = new Workshops;  // never deleted: at the process's end teams may be at work
thread_local bool works_beside = false;

Workshop& workshop() { return works_beside ? workshops->beside : workshops->usual; }

// A forked process has none of its parent's threads, and what they were at is left as it was. So it
// gets its own.
#if !defined(_WIN32)
[[maybe_unused]] const int forks =
    pthread_atfork(nullptr, nullptr, [] { workshops = new Workshops; });
#endif

// Whose team is free for so many things and threads; null for none.
Workshop* free_workshop(int64_t count, int threads) {
    if (count < 2 || threads < 2) return nullptr;
    Workshop& own = workshop();
    return own.busy.try_lock() ? &own : nullptr;
}

// Hidden states [rows hidden] as the output head reads them.
void encode_for_head(const Decoder& decoder, const float* hidden, int rows, bool norm,
                     Rows& encoded) {
    const int width = decoder.hidden;
    std::vector<float> row_normed(width);
    encoded.reserve(decoder.lm_head.encoding, rows, width);
    for (int row = 0; row < rows; row++) {
        const float* values = hidden + (size_t)row * width;
        if (norm) {
            normed(decoder, values, width, decoder.norm, decoder.is_layer_norm, row_normed.data());
            values = row_normed.data();
        }
        encode(encoded, row, values, width);
    }
}

// Logits [rows count] of some tokens after hidden states [rows hidden], which are encoded. The whole
// tiles that the tokens lie in are multiplied.
void logits_of(const Decoder& decoder, const Rows& encoded, int rows, const int64_t* tokens,
               int64_t count, float* logits, int threads) {
    std::vector<int64_t> columns(count), firsts;  // by tile; where each tile's columns begin
    for (int64_t i = 0; i < count; i++) columns[i] = i;
    auto tile_of = [&](int64_t column) { return (int)(tokens[column] / LANES); };
    std::stable_sort(columns.begin(), columns.end(),
                     [&](int64_t a, int64_t b) { return tile_of(a) < tile_of(b); });
    for (int64_t i = 0; i < count; i++)
        if (i == 0 || tile_of(columns[i]) != tile_of(columns[i - 1])) firsts.push_back(i);
    firsts.push_back(count);
    for_each((int64_t)firsts.size() - 1, threads, [&](int64_t group) {
        const int tile = tile_of(columns[firsts[group]]);
        products(decoder.lm_head, encoded, rows, tile, tile + 1, [&](int row, int, Floats values) {
            values = bounded(decoder, values);
            for (int64_t i = firsts[group]; i < firsts[group + 1]; i++)
                logits[(size_t)row * count + columns[i]] = values[tokens[columns[i]] % LANES];
        });
    });
}

}  // namespace

void pass(const Decoder& decoder, const ForwardInput& run, int threads) {
    Workshop& own = workshop();
    // more threads than CPUs take pieces as large as fewer would
    const int cpus = Team::cpus(), split = run.trace ? run.trace->threads : std::min(threads, cpus);
    std::lock_guard<std::mutex> lock(own.busy);
    own.team.set_crowded(threads > cpus);
    try {
        own.scratch.reserve(decoder, run, split, threads);
        Forward forward(decoder, run, own.scratch, split, threads);
        own.team.run(forward, run.trace ? 1 : threads);
        forward.end();
    } catch (const std::bad_alloc&) {
        own.scratch = Scratch();  // what is half done is worth nothing
        throw;
    }
}

int32_t unknown_row(const Decoder& decoder, const ForwardInput& run) {
    for (int32_t row = 0; row < run.rows; row++)
        if (run.tokens[row] < 0 || run.tokens[row] >= decoder.vocabulary) return row;
    return -1;
}

TeamTurn::TeamTurn(int64_t count, int threads)
    : count(count), threads(threads), workshop(free_workshop(count, threads)) {}

TeamTurn::~TeamTurn() {
    if (workshop) workshop->busy.unlock();
}

void TeamTurn::run(Job& job) const {
    if (workshop) workshop->team.run(job, threads);
    else do_alone(job);
}

}  // namespace draftwood

extern "C" {

// The first row whose token is none of the vocabulary, in which case nothing was run; else -1.
int32_t draftwood_run(const draftwood::Decoder* decoder, const draftwood::ForwardInput* run,
                      int32_t threads) {
    using namespace draftwood;
    return guarded([&] {
        const int32_t unknown = unknown_row(*decoder, *run);
        if (unknown < 0) pass(*decoder, *run, threads);
        return unknown;
    });
}

// Whether the calling thread's runs go on beside those of other threads from now on.
void draftwood_work_beside(int32_t beside) { draftwood::works_beside = beside; }

// Bytes of a block of the cache; and see keep_path.
int64_t draftwood_cache_block(const draftwood::CacheShape* shape) { return shape->bytes(); }
// Bytes of a block's memory, and of the block before its tail.
int64_t draftwood_memory_bytes(const draftwood::CacheShape* shape) {
    return (int64_t)shape->memory_floats() * sizeof(float);
}
int64_t draftwood_cache_tail(const draftwood::CacheShape* shape) { return shape->tail_at(); }
int32_t draftwood_keep_path(const draftwood::CacheShape* shape, draftwood::Blocks blocks,
                            int64_t start, const int64_t* path, int64_t count) {
    return draftwood::guarded(
        [&] { return draftwood::keep_path(*shape, blocks, start, path, count), 0; });
}

// Shape of the cache of a decoder with so many layers; `each` has room for one more than these.
int32_t draftwood_cache_shape(const draftwood::Decoder* decoder, int32_t layers,
                              draftwood::CacheShape* shape, draftwood::CacheLayer* each) {
    return draftwood::guarded([&] {
        std::vector<draftwood::CacheLayer> found;
        *shape = draftwood::cache_shape(*decoder, layers, found);
        shape->each = std::copy(found.begin(), found.end(), each) - found.size();
        return 0;
    });
}

// Logits [rows count] as logits_of says, of hidden states [rows hidden], which go through the final
// norm first where `norm` is true.
int32_t draftwood_logits(const draftwood::Decoder* decoder, const float* hidden, int32_t rows,
                         int32_t norm, const int64_t* tokens, int64_t count, float* logits,
                         int32_t threads) {
    using namespace draftwood;
    return guarded([&] {
        Rows encoded;
        encode_for_head(*decoder, hidden, rows, norm, encoded);
        logits_of(*decoder, encoded, rows, tokens, count, logits, threads);
        return 0;
    });
}
}
