// Trees drawn level by level from rows of logits: shapes/widths.py and shapes/stochastic_beam.py,
// with the same uniform numbers.
#pragma once

#include "clock.h"
#include "filters.h"
#include "logit_rows.h"
#include "source.h"
#include "uniforms.h"
#include "workshop.h"

namespace draftwood {

// Logits of some nodes, [nodes][stride], of which the first `size` belong to `tokens`; to tokens
// 0, 1, ... where that is null.
struct LevelLogits {
    const float* rows;  // null where none could be made
    int64_t size, stride;
    const int64_t* tokens;
};

// What drafts, asked level by level.
class LevelDrafter {
public:
    virtual ~LevelDrafter() = default;
    // Logits after nodes `first` to `size` - 1 of a tree, in memory that stays until the next tree.
    // Level 0 is the root alone, and comes first; each further level holds all nodes since.
    virtual LevelLogits level(const int64_t* tokens, const int64_t* parents, int64_t size,
                              int64_t first, int32_t threads) = 0;
    // Whether a tree can be begun.
    virtual bool is_ready() const { return true; }
    virtual void learn(const VerifiedTree&) {}
};

// CDrawnShape of structures.py.
struct DrawnShape {
    const int32_t* widths;  // [levels]: children of a node, or beams of a level
    int32_t levels;
    int32_t is_beam;      // else each node has as many children
    int32_t is_distinct;  // whether siblings are drawn without replacement, else independently
    int32_t is_noisy;     // else the likeliest tokens are taken
    int32_t is_judged_distinct;  // how rules take siblings; other than is_distinct they are wrong
    float temperature;    // of the draft
};

// A distribution that siblings are drawn from.
struct DrawnRow {
    Softmax softmax;
    const int64_t* tokens;  // of its entries, or null
    std::vector<double> blocks;
    double total;

    void sum(const float* logits, int64_t size, float temperature) {
        blocks.resize(blocks_of(size));
        softmax = {logits, size, 1 / temperature, 0};
        total = sum_weights(softmax, blocks.data());
    }
    double chance(int64_t place) const { return softmax.weight(place) / total; }
    int64_t token(int64_t place) const { return tokens ? tokens[place] : place; }
};

// Drawn trees of one text, one after the other.
class DrawnTrees {
public:
    DrawnTrees(const DrawnShape& shape, LevelDrafter& drafter)
        : shape(shape), widths(shape.widths, shape.widths + shape.levels), drafter(drafter) {}

    // A tree of at most `most` nodes besides the root, no path longer than `room`; gives the number
    // of nodes, the root among them. The arrays have room for all; `chances` are those of tokens in
    // their rows.
    int64_t grow(int64_t root, int64_t most, int64_t room, Uniforms& uniforms, int32_t threads,
                 int64_t* tokens, int64_t* parents, double* chances) {
        is_broken = false, seconds = 0;
        tokens[0] = root, parents[0] = -1, chances[0] = 1, places.assign(1, -1);
        beams.assign(1, {0, 0, 0, 0, 0});
        int64_t first = 0, size = 1;
        const int64_t depth = std::min<int64_t>(widths.size(), room);
        if (most < 1 || !drafter.is_ready()) return 1;
        for (int64_t level = 0; level < depth && size <= most; level++) {
            if (!read(tokens, parents, first, size, threads)) break;
            draw(widths[level], first, size - first, uniforms, threads);
            first = size;
            for (const Drawn& each : drawn) {
                if (size > most) break;
                tokens[size] = rows[each.parent].token(each.place);
                parents[size] = each.parent, chances[size] = each.chance;
                places.push_back(each.place), size++;
            }
        }
        return size;
    }

    // Draft by the rules of the text, which cut where the temperature is above 0; null for none.
    void follow_rules(const Filters* rules, TextBefore text) { filters = rules, before = text; }

    void learn(const VerifiedTree& verified) { drafter.learn(verified); }

    bool is_distinct() const { return shape.is_judged_distinct; }
    // The row that a node's children were drawn from, and which of its entries a node is.
    const DrawnRow& row(int64_t node) const { return rows[node]; }
    int64_t place(int64_t node) const { return places[node]; }

    // A row's probabilities, over the target's vocabulary.
    void spread(int64_t node, int64_t vocabulary, std::vector<float>& probs) const {
        const DrawnRow& row = rows[node];
        const int64_t size = row.softmax.size;
        std::vector<float> own(row.tokens ? size : 0);
        probs.assign(vocabulary, 0);
        soften_row(row.softmax.logits, size, shape.temperature,
                   row.tokens ? own.data() : probs.data());
        for (int64_t i = 0; row.tokens && i < size; i++) probs[row.tokens[i]] = own[i];
    }

    // Whether a row of the last tree held what is no number; it counted as uniform.
    bool is_broken = false;
    double seconds = 0;  // that the last tree's levels took what drafts

private:
    struct Drawn {
        int64_t parent, place;
        double chance;
        double log_prob, perturbed;  // of beams
    };

    const DrawnShape shape;
    const std::vector<int32_t> widths;
    LevelDrafter& drafter;
    std::vector<DrawnRow> rows;    // by node
    std::vector<int64_t> places;   // likewise
    std::vector<Drawn> drawn, beams;  // of a level: all children, and those that stay
    std::vector<int64_t> found;
    std::vector<double> shares;
    std::vector<float> uniform;  // logits of a row that is none
    const Filters* filters = nullptr;
    TextBefore before{};
    std::vector<std::vector<float>> filtered;  // by node

    bool read(const int64_t* tokens, const int64_t* parents, int64_t first, int64_t size,
              int32_t threads) {
        Lap lap;
        const LevelLogits logits = drafter.level(tokens, parents, size, first, threads);
        seconds += lap();
        if (!logits.rows) return false;
        if ((int64_t)rows.size() < size) rows.resize(size);
        if (filters && (int64_t)filtered.size() < size) filtered.resize(size);
        const int64_t count = size - first;
        for_each(count, count > 1 ? threads : 1, [&](int64_t i) {
            DrawnRow& row = rows[first + i];
            row.tokens = logits.tokens;
            const float* own = logits.rows + i * logits.stride;
            if (filters) own = filter(own, logits, first + i, path_to(first + i, tokens, parents));
            row.sum(own, logits.size, shape.temperature);
        });
        for (int64_t node = first; node < size; node++)
            if (std::isnan(rows[node].total)) {
                const float* own = logits.rows + (node - first) * logits.stride;
                is_broken |= !filters || !std::isfinite(largest_value(own, logits.size));
                uniform.assign(logits.size, 0);
                rows[node].sum(uniform.data(), logits.size, shape.temperature);
            }
        return true;
    }

    const float* filter(const float* row, const LevelLogits& logits, int64_t node,
                        const std::vector<int64_t>& path) {
        std::vector<float>& own = filtered[node];
        own.resize(logits.size);
        FilteredRows(*filters, before, shape.is_noisy ? shape.temperature : 0, logits.tokens)
            .write(row, logits.size, path, own.data());
        return own.data();
    }

    // Fills `drawn` with the next level.
    void draw(int64_t wanted, int64_t first, int64_t count, Uniforms& uniforms, int32_t threads) {
        const int64_t width = std::min(wanted, rows[first].softmax.size);
        shares.clear(), drawn.clear(), found.resize(count * width);
        for (int64_t i = 0; shape.is_noisy && i < count * width; i++)
            shares.push_back(uniforms.next());
        for_each(count, count > 1 ? threads : 1, [&](int64_t i) { draw_row(first, i, width); });
        for (int64_t i = 0; i < count * width; i++) {
            const int64_t node = first + i / width;
            drawn.push_back({node, found[i], rows[node].chance(found[i]), 0, 0});
        }
        if (shape.is_beam) choose_beams(width, uniforms);
    }

    void draw_row(int64_t first, int64_t i, int64_t width) {
        const DrawnRow& row = rows[first + i];
        int64_t* own = &found[i * width];
        if (shape.is_noisy) {
            std::vector<double> blocks = row.blocks;
            return sample_blocks(
                blocks, row.softmax.size, &shares[i * width], (int)width, shape.is_distinct, own,
                [&](int64_t start, float* left) { row.softmax.fill(start, left); });
        }
        topk_of(row.softmax.logits, row.softmax.size, (int)width, own);
    }

    // The children of largest perturbed values; see shapes/stochastic_beam.py.
    void choose_beams(int64_t width, Uniforms& uniforms) {
        for (size_t beam = 0; beam * width < drawn.size(); beam++)
            perturb(beams[beam], &drawn[beam * width], width, uniforms);
        std::stable_sort(drawn.begin(), drawn.end(), [](const Drawn& a, const Drawn& b) {
            return a.perturbed > b.perturbed;
        });
        if (drawn.size() > (size_t)widths[0]) drawn.resize(widths[0]);
        beams = drawn;
    }

    void perturb(const Drawn& beam, Drawn* children, int64_t width, Uniforms& uniforms) const {
        constexpr double LEAST = 1e-300;  // below it a time counts as this much
        double passed = beam.log_prob > -INFINITY ? std::exp(beam.log_prob - beam.perturbed)
                                                  : INFINITY,
               left = 1;
        for (int64_t i = 0; i < width; i++) {
            Drawn& child = children[i];
            child.log_prob =
                child.chance > 0 ? beam.log_prob + std::log(child.chance) : -INFINITY;
            child.perturbed = child.log_prob;
            if (!shape.is_noisy) continue;
            const double delay = uniforms.exponential();
            if (i) passed += delay / std::max({left, child.chance, LEAST});
            left -= child.chance;
            const double value =
                i ? beam.log_prob - std::log(std::max(passed, LEAST)) : beam.perturbed;
            child.perturbed = child.chance > 0 && passed < INFINITY ? value : -INFINITY;
        }
    }
};

}  // namespace draftwood
