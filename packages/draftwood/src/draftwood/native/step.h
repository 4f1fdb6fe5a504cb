// Steps of texts: draft, run, verify and learn. The same as Sequence does piece by piece
// (engine/executors/native.py), with the sources of merging.h or trees drawn from a model's rows, and
// the rules of verifiers/match.py and of verdicts.h.
#pragma once

#include <atomic>

#include "head_drafting.h"
#include "jacobi.h"
#include "merging.h"
#include "network.h"
#include "verdicts.h"

namespace draftwood {

// CStep of structures.py.
struct Step {
    Drafting* drafting;  // of several sources, or
    HeadDrafting* head;  // of a trained head alone, or
    DrawnTrees* drawn;   // drawn from it, from a draft model or from the last pass's rows, or
    JacobiRows* raced;   // these rows, run in the races to come; all null draft and learn nothing
    const double* uniforms;  // of the request, as many as a drawn tree and its verdict may take
    const double *costs, *slopes;  // of a step with 0, 1, 2, ... draft tokens, as for `grow`
    double others;                  // likewise
    int64_t room, root, most;       // `most` draft tokens; with 0 nothing is grown
    int64_t ranks;                  // likeliest successors of each node that are learnt; 0: none
    uint64_t key, place;            // of the request, and of its next draw
    int32_t is_drawn;               // else the likeliest tokens are taken
    int32_t rule;                   // of verdicts.h, for drawn trees; others are matched
    float temperature, temperature_of_ranks;
    const Filters* filters;  // what changes logits besides the temperature; null where nothing does
    int64_t* before;  // tokens before the root, with room for those of steps in a row; null where
                      // no filter goes by them
    int64_t num_before, prompt;  // the first `prompt` are not the answer's
    // what came of it; [1 + most] each
    int64_t *tokens, *parents, *path;
    double* chances;
    uint64_t* proposers;  // as of draftwood_drafting_proposers
    int64_t nodes, kept, next_token;
    int64_t draws, uniforms_used;  // of the request
    int64_t is_head_broken;  // whether the head said NaN, and so nothing was drafted
    const float* broken;  // a row of logits of which no token can be drawn, else null
    double draft_seconds, target_seconds, verify_seconds;
    double drafter_seconds;  // of drafting: in the head or the draft model
    double learn_seconds;    // of drafting: taking in what the pass said
};

// How far steps of a text may go on in a row. CStepRun of structures.py.
struct StepRun {
    const CacheShape* shape;
    const int64_t* ends;  // tokens that end the text
    int64_t num_ends;
    int64_t steps;   // at most
    int64_t tokens;  // that the text may take
    int64_t places;  // that the cache has for them, the last tree included
    int64_t states;  // rows of hidden states that each step has for itself; 0 where all share them
    double seconds;  // after which no further step begins

    bool ends_with(const Step& step) const {
        for (int64_t i = 1; i <= step.kept; i++) {
            const int64_t token = i < step.kept ? step.tokens[step.path[i]] : step.next_token;
            if (std::find(ends, ends + num_ends, token) != ends + num_ends) return true;
        }
        return false;
    }
};

// How often somebody wanted to be heard before rows of steps end by themselves.
inline std::atomic<int64_t> interruptions{0};

class Stepper {
public:
    Stepper(Step& step, int vocabulary) : step(step), vocabulary(vocabulary) {}

    // Set up the step that comes behind another one of the same text; it has arrays of its own.
    void follow(const Step& before) {
        Step next = before;
        next.tokens = step.tokens, next.parents = step.parents, next.path = step.path;
        next.chances = step.chances, next.proposers = step.proposers;
        next.root = before.next_token, next.place += before.draws;
        next.room = std::max<int64_t>(0, before.room - before.kept);
        if (next.uniforms) next.uniforms += before.uniforms_used;
        for (int64_t i = 0; next.before && i < before.kept; i++)
            next.before[next.num_before++] = before.tokens[before.path[i]];
        step = next;
    }

    // The tree that emits most tokens a second; see Budget.best.
    void draft(int32_t threads) {
        Lap lap;
        step.broken = nullptr, step.kept = 0, step.is_head_broken = 0, step.uniforms_used = 0;
        step.drafter_seconds = step.learn_seconds = 0;
        if (step.drawn) grow_drawn(threads);
        else if (step.head) grow_alone(threads);
        else if (step.raced) grow_raced();
        else grow(threads);
        step.draft_seconds = lap();
    }

    void grow(int32_t threads) {
        step.nodes = 1;
        step.tokens[0] = step.root, step.parents[0] = -1, step.chances[0] = 1;
        if (!step.drafting || !step.most) return;
        step.drafting->grow(step.root, step.costs, step.slopes, step.others, step.is_drawn,
                            step.key, step.place, step.room, threads);
        const std::vector<Node>& nodes = step.drafting->nodes;
        double emitted = 1 + step.others, best = emitted / step.costs[0];
        for (int64_t count = 1; count <= step.most && count < (int64_t)nodes.size(); count++) {
            const Node& node = nodes[count];
            step.tokens[count] = node.token, step.parents[count] = node.parent;
            step.chances[count] = node.chance;
            emitted += node.chance;
            const double rate = emitted / step.costs[count];
            if (rate > best) step.nodes = count + 1, best = rate;
        }
        step.drafter_seconds = step.drafting->spent();
        for (int64_t i = 1; i < step.nodes; i++)
            step.proposers[i] = step.drafting->proposers(nodes[i]);
    }

    void grow_alone(int32_t threads) {
        step.nodes = step.head->grow(step.root, step.most, step.room, threads, step.tokens,
                                     step.parents, step.chances);
        step.is_head_broken = step.head->is_broken, step.drafter_seconds = step.head->seconds;
        std::fill(step.proposers, step.proposers + step.nodes, 0);
    }

    void grow_drawn(int32_t threads) {
        Uniforms uniforms(step.uniforms);
        step.drawn->follow_rules(step.filters, text_before());
        step.nodes = step.drawn->grow(step.root, step.most, step.room, uniforms, threads,
                                      step.tokens, step.parents, step.chances);
        step.uniforms_used = uniforms.used();
        step.is_head_broken = step.drawn->is_broken, step.drafter_seconds = step.drawn->seconds;
        std::fill(step.proposers, step.proposers + step.nodes, 0);
    }

    // The tokens that win the races to come, should the rows be right.
    void grow_raced() {
        step.nodes = 1;
        step.tokens[0] = step.root, step.parents[0] = -1, step.chances[0] = 1;
        for (int64_t node = 0; node < std::min(step.most, step.room); node++, step.nodes++) {
            const float* row = step.raced->row(step.tokens, node);
            const int64_t token = draw(row, node, place_key(step.key, step.place + node));
            if (token < 0) break;
            step.tokens[node + 1] = token, step.parents[node + 1] = node;
            step.chances[node + 1] = 1;
        }
        std::fill(step.proposers, step.proposers + step.nodes, 0);
    }

    // Which nodes each node sees, and how deep it lies: [nodes nodes] and [nodes].
    void relate(uint8_t* sees, int64_t* depths) const {
        for (int64_t i = 0; i < step.nodes; i++) {
            const int64_t parent = step.parents[i];
            uint8_t* own = sees + i * step.nodes;
            const uint8_t* above = sees + std::max<int64_t>(parent, 0) * step.nodes;
            if (parent < 0) std::fill(own, own + step.nodes, 0);
            else std::copy(above, above + step.nodes, own);
            own[i] = 1;
            depths[i] = parent < 0 ? 0 : depths[parent] + 1;
        }
    }

    void verify(const float* logits) {
        if (step.drawn) judge(logits);
        else match(logits), step.draws = step.kept;
        step.broken = step.next_token < 0 ? logits + step.path[step.kept - 1] * vocabulary : nullptr;
    }

    // The target's own draws, as long as the tree holds them.
    void match(const float* logits) {
        for (int64_t node = 0; node >= 0; node = child_of(node, step.next_token)) {
            const float* row = logits + node * vocabulary;
            const PlaceKey key = place_key(step.key, step.place + step.kept);
            step.path[step.kept++] = node;
            step.next_token = draw(row, node, key);
            if (step.next_token < 0) return;
        }
    }

    int64_t draw(const float* row, int64_t node, PlaceKey key) const {
        if (!step.filters)
            return gumbel_argmax_of_logits(row, vocabulary, step.temperature, key);
        return FilteredRows(*step.filters, text_before(), step.temperature)
            .draw(row, vocabulary, path_to(node, step.tokens, step.parents), key);
    }

    // By the rule that belongs to how the tree was drawn.
    void judge(const float* logits) {
        Uniforms uniforms(step.uniforms + step.uniforms_used);
        Judged tree{*step.drawn, step.tokens,      step.parents, step.nodes,   logits,
                    vocabulary,  step.temperature, step.filters, text_before()};
        Verifier verifier(tree, uniforms, step.key, step.place);
        const Verdict verdict = verifier.judge((Rule)step.rule);
        step.uniforms_used += uniforms.used(), step.draws = verifier.draws;
        step.next_token = verdict.next_token;
        for (int64_t node = verdict.node; node >= 0; node = step.parents[node])
            step.path[step.kept++] = node;
        std::reverse(step.path, step.path + step.kept);
    }

    // `each(count, act)` acts on 0 to count - 1, with threads.
    template <class Each>
    void learn(const float* logits, const float* const* hidden, Each each) {
        const VerifiedTree alone{step.tokens, step.parents, step.nodes, step.path, step.kept,
                                 nullptr,     nullptr,      0,          hidden,    logits};
        if (step.drawn) return step.drawn->learn(alone);
        if (step.head) return step.head->learn(alone);
        if (step.raced) return step.raced->learn(alone);
        if (!step.drafting) return;
        const int64_t ranks = std::min<int64_t>(step.ranks, vocabulary);
        std::vector<int64_t> successors(step.nodes * ranks);
        std::vector<float> probs(step.nodes * ranks);
        if (ranks)
            each(step.nodes, [&](int64_t node) {
                const float* row = logits + node * vocabulary;
                int64_t* found = &successors[node * ranks];
                topk_of(row, vocabulary, ranks, found);
                shares_of(row, vocabulary, found, ranks, step.temperature_of_ranks,
                          &probs[node * ranks]);
            });
        step.drafting->learn({step.tokens, step.parents, step.nodes, step.path, step.kept,
                              ranks ? successors.data() : nullptr, probs.data(), ranks, hidden});
    }

private:
    Step& step;
    const int vocabulary;

    TextBefore text_before() const { return {step.before, step.num_before, step.prompt}; }

    int64_t child_of(int64_t node, int64_t token) const {
        for (int64_t child = node + 1; child < step.nodes; child++)
            if (step.parents[child] == node && step.tokens[child] == token) return child;
        return -1;
    }
};

// Steps of texts in a row.
struct StepRow {
    Step* const* rows;
    const StepRun* const* runs;
    const int64_t count;  // of the texts
    int32_t most;         // steps
    double seconds = 0, within;
    std::vector<Sequence> here;  // where each text goes on
    std::vector<Step*> steps;    // that are made now
    std::vector<int64_t> taken;  // tokens
    std::vector<float*> hidden;  // by layer

    StepRow(Step* const* rows, const Sequence* places, const StepRun* const* runs, int64_t count)
        : rows(rows), runs(runs), count(count), here(places, places + count), steps(count),
          taken(count) {
        most = (int32_t)runs[0]->steps, within = runs[0]->seconds;
        for (int64_t i = 1; i < count; i++) {
            most = std::min(most, (int32_t)runs[i]->steps);
            within = std::min(within, runs[i]->seconds);
        }
    }

    // Set up a step of each.
    void begin(int32_t made, int vocabulary) {
        for (int64_t i = 0; i < count; i++) {
            steps[i] = rows[i] + made;
            if (!made) continue;
            const Step& before = rows[i][made - 1];
            here[i].start = here[i].before = here[i].start + before.kept;
            Stepper(*steps[i], vocabulary).follow(before);
        }
    }

    // Have the path of the steps before in the cache, once these can be made.
    void keep_paths(int32_t made) const {
        for (int64_t i = 0; made && i < count; i++) {
            const Step& before = rows[i][made - 1];
            keep_path(*runs[i]->shape, here[i].blocks, here[i].start - before.kept, before.path,
                      before.kept);
        }
    }

    // What is run beside the steps: nothing, with hidden states where those of this step go.
    ForwardInput beside(const ForwardInput& first, int32_t made, int width) {
        ForwardInput own = first;
        if (!first.hidden || !runs[0]->states) return own;
        hidden.assign(first.hidden, first.hidden + first.layers + 1);
        for (float*& states : hidden)
            if (states) states += made * runs[0]->states * width;
        own.hidden = hidden.data();
        return own;
    }

    // Whether no further step may be made behind those that were, which took so long.
    bool ends(double took) {
        seconds += took;
        bool over = seconds > within;
        for (int64_t i = 0; i < count; i++) {
            const Step& step = *steps[i];
            const StepRun& run = *runs[i];
            taken[i] += step.kept;
            over = over || step.broken || step.is_head_broken || taken[i] >= run.tokens ||
                   taken[i] + 1 + step.most > run.places || run.ends_with(step);
        }
        return over;
    }
};

// The steps of one pass, and the sequences that are run beside them.
class Pass {
public:
    Pass(const Decoder& decoder, const ForwardInput& beside, Step* const* steps,
         const Sequence* places, int64_t count)
        : decoder(decoder), beside(beside), steps(steps), count(count) {
        sequences.assign(beside.sequences, beside.sequences + beside.num_sequences);
        sequences.insert(sequences.end(), places, places + count);
        tokens.assign(beside.tokens, beside.tokens + beside.rows);
        positions.assign(beside.positions, beside.positions + beside.rows);
        seen.assign(beside.sees, beside.sees + beside.num_sequences);
        for (int32_t i = 0; i < beside.num_sequences; i++) wanted += sequences[i].wanted;
    }

    // What is to be run once all trees are drafted.
    ForwardInput joined(std::unique_ptr<float[]>& logits, int64_t& room) {
        int64_t rows = 0, squares = 0;
        for (int64_t i = 0; i < count; i++)
            rows += steps[i]->nodes, squares += steps[i]->nodes * steps[i]->nodes;
        sees.resize(squares), positions.resize(beside.rows + rows);
        int64_t row = beside.rows, square = 0, kept = beside.num_sequences;
        for (int64_t i = 0; i < count; i++) {
            const int64_t nodes = steps[i]->nodes;
            first.push_back(row - beside.rows);
            if (!nodes) continue;
            Sequence sequence = sequences[beside.num_sequences + i];
            sequence.count = sequence.wanted = nodes;
            sequences[kept++] = sequence;
            tokens.insert(tokens.end(), steps[i]->tokens, steps[i]->tokens + nodes);
            seen.push_back(&sees[square]);
            Stepper(*steps[i], decoder.vocabulary).relate(&sees[square], &positions[row]);
            for (int64_t node = 0; node < nodes; node++) positions[row + node] += sequence.start;
            row += nodes, square += nodes * nodes;
        }
        const int64_t needed = (wanted + rows) * decoder.vocabulary;
        if (room < needed) logits.reset(new float[needed]), room = needed;
        ForwardInput all = beside;
        all.num_sequences = (int32_t)kept, all.rows = (int32_t)row;
        all.sequences = sequences.data(), all.tokens = tokens.data();
        all.positions = positions.data(), all.sees = seen.data(), all.logits = logits.get();
        return all;
    }

    // Match and learn; `seconds` of the pass are shared by rows.
    template <class Each>
    void settle(const float* logits, double seconds, Each each) const {
        const int64_t vocabulary = decoder.vocabulary;
        if (wanted) std::copy(logits, logits + wanted * vocabulary, beside.logits);
        const float* const own = logits + wanted * vocabulary;
        const double share = seconds / (double)tokens.size();
        each(count, [&](int64_t i) {
            Step& step = *steps[i];
            if (!step.nodes) return;
            step.target_seconds = share * step.nodes;
            Stepper stepper(step, vocabulary);
            Lap lap;
            stepper.verify(own + first[i] * vocabulary);
            step.verify_seconds = lap();
            if (step.broken) return;
            std::vector<const float*> hidden(beside.layers + 1, nullptr);
            for (size_t layer = 0; beside.hidden && layer < hidden.size(); layer++)
                if (const float* states = beside.hidden[layer])
                    hidden[layer] = states + (beside.rows + first[i]) * decoder.hidden;
            stepper.learn(own + first[i] * vocabulary, hidden.data(), each);
            step.learn_seconds = lap(), step.draft_seconds += step.learn_seconds;
        });
    }

private:
    const Decoder& decoder;
    const ForwardInput& beside;
    Step* const* steps;
    const int64_t count;
    int64_t wanted = 0;  // rows of logits of the others
    std::vector<int64_t> first;  // rows of the steps before each one's
    std::vector<Sequence> sequences;
    std::vector<int64_t> tokens, positions;
    std::vector<const uint8_t*> seen;
    std::vector<uint8_t> sees;
};

}  // namespace draftwood
