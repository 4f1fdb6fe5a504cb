// Verdicts on drawn trees: verifiers/rejection.py, traversal.py and k_seq.py on rows of logits, with
// the same acts of randomness.
#pragma once

#include <memory>

#include "drawn_trees.h"
#include "filters.h"
#include "k_seq.h"
#include "noise.h"

namespace draftwood {

// The row that siblings were drawn from, without those that were put aside.
class SiblingRow {
public:
    SiblingRow() = default;
    explicit SiblingRow(const DrawnRow& row) : row(&row), total(row.total) {}

    double chance(int64_t place) const {
        const bool is_gone = std::find(gone.begin(), gone.end(), place) != gone.end();
        return is_gone || !(total > 0) ? 0 : row->softmax.weight(place) / total;
    }

    void put_aside(int64_t place) {
        gone.push_back(place);
        total = sum_without(row->softmax, row->blocks.data(), gone.data(), (int64_t)gone.size());
    }

    const DrawnRow* row = nullptr;
    std::vector<int64_t> gone;
    double total = 0;
};

// The target's distribution after a node, as rejections wear it down.
class TargetRow {
public:
    // `weights` is memory for what rejections leave.
    TargetRow(const float* logits, int64_t size, float temperature, std::vector<float>& weights)
        : weights(weights), temperature(temperature), size(size) {
        row.tokens = nullptr;
        if (temperature > 0) row.sum(logits, size, temperature), total = row.total;
        else row.softmax.logits = logits, find_certain();
    }

    // Whether there is a distribution.
    bool is_sound() const { return temperature > 0 ? !std::isnan(row.total) : certain >= 0; }

    double chance(int64_t token) const {
        if (temperature == 0) return token == certain;
        if (is_worn) return weights[token] / total;
        return token < size ? row.softmax.weight(token) / total : 0;
    }

    // Reject a token of a path of weight w: norm([w p - q]+); gives the sum that it is divided by.
    double subtract(const SiblingRow& q, double weight) {
        if (temperature == 0 || !(weight > 0)) return 0;
        weights.resize(size);
        const double before = total;
        spared.clear();
        for (int64_t place : q.gone) spared.push_back(q.row->token(place));
        total = take_away(Remainder{weights.data(), size}, is_worn ? nullptr : &row.softmax,
                          q.row->softmax, q.row->tokens, before / q.total / weight, spared.data(),
                          (int64_t)spared.size());
        is_worn = true;
        if (total > 0) return weight * total / before;
        // where nothing is left of p itself it equals q, so no token can have been rejected
        become(q);
        return 0;
    }

    int64_t draw(PlaceKey key) const {
        if (is_worn) return gumbel_argmax(weights.data(), size, key);
        return gumbel_argmax_of_logits(row.softmax.logits, size, temperature, key);
    }

private:
    std::vector<float>& weights;
    const float temperature;
    const int64_t size;
    DrawnRow row;
    double total = 0;
    int64_t certain = -1;  // the likeliest token, where it is the only one
    bool is_worn = false;  // whether `weights` are the distribution
    std::vector<int64_t> spared;

    void find_certain() {
        topk_of(row.softmax.logits, size, 1, &certain);
        if (!std::isfinite(row.softmax.logits[certain])) certain = -1;
    }

    void become(const SiblingRow& q) {
        std::fill(weights.begin(), weights.end(), 0.0f);
        total = 0;
        for (int64_t place = 0; place < q.row->softmax.size; place++) {
            const double chance = q.chance(place);
            weights[q.row->token(place)] = (float)chance, total += chance;
        }
    }
};

// Which rule decides; CStep of structures.py.
enum Rule : int32_t { MATCH, REJECTION, TRAVERSAL, K_SEQ };

// What a verdict reads of a drawn tree, and of the target's pass over it.
struct Judged {
    const DrawnTrees& drawn;
    const int64_t *tokens, *parents;
    int64_t nodes;
    const float* logits;  // [nodes][vocabulary]
    int64_t vocabulary;
    float temperature;
    const Filters* filters;  // null where there are none
    TextBefore before;
    std::vector<bool> is_filtered{};  // by node

    // The row after a node, as the text's rules leave it.
    const float* logits_after(int64_t node) {
        const float* row = logits + node * vocabulary;
        if (!filters) return row;
        static thread_local std::vector<std::vector<float>> rows;
        if ((int64_t)rows.size() < nodes) rows.resize(nodes);
        is_filtered.resize(nodes);
        std::vector<float>& own = rows[node];
        if (!is_filtered[node]) {
            own.resize(vocabulary), is_filtered[node] = true;
            FilteredRows(*filters, before, temperature)
                .write(row, vocabulary, path_to(node, tokens, parents), own.data());
        }
        return own.data();
    }

    // Children of some nodes, in drawing order.
    std::vector<int64_t> children(const std::vector<int64_t>& of) const {
        std::vector<int64_t> found;
        for (int64_t parent : of)
            for (int64_t node = parent + 1; node < nodes; node++)
                if (parents[node] == parent) found.push_back(node);
        return found;
    }

    std::vector<int64_t> like(int64_t child, const std::vector<int64_t>& siblings) const {
        if (drawn.is_distinct()) return {child};
        return with_token(tokens[child], siblings);
    }

    // The siblings that hold a token, which are one place of the text; those with children first, as
    // a leaf may have no row.
    std::vector<int64_t> with_token(int64_t token, const std::vector<int64_t>& siblings) const {
        std::vector<int64_t> found;
        for (int64_t each : siblings)
            if (tokens[each] == token) found.push_back(each);
        std::stable_partition(found.begin(), found.end(),
                              [&](int64_t each) { return !children({each}).empty(); });
        return found;
    }
};

// The last node that is kept, and what is drawn behind it; -1 where nothing can be.
struct Verdict {
    int64_t node, next_token;
};

class Verifier {
public:
    // `place`: of the request's next draw.
    Verifier(Judged& tree, Uniforms& uniforms, uint64_t key, uint64_t place)
        : tree(tree), uniforms(uniforms), key(key), place(place) {}

    Verdict judge(Rule rule) {
        switch (rule) {
            case MATCH: return follow();
            case TRAVERSAL: return traverse();
            case K_SEQ: return select();
            default: return reject();
        }
    }

    int64_t draws = 0;  // that it made

private:
    // A node on the path under test.
    struct Open {
        std::vector<int64_t> nodes, children;  // its siblings of one token, and theirs
        size_t tested = 0;                     // of the children
        double weight;
        std::unique_ptr<TargetRow> p;  // made when it is asked for
        SiblingRow q;
    };

    Judged& tree;
    Uniforms& uniforms;
    const uint64_t key, place;

    PlaceKey next_draw() { return place_key(key, place + draws++); }

    // Memory for what rejections leave on some level of the path.
    std::vector<float>& memory_of(size_t level) {
        static thread_local std::vector<std::unique_ptr<std::vector<float>>> levels;
        while (levels.size() <= level) levels.push_back(std::make_unique<std::vector<float>>());
        return *levels[level];
    }

    TargetRow row_after(int64_t node, size_t level) {
        return {tree.logits_after(node), tree.vocabulary, tree.temperature, memory_of(level)};
    }

    // The target's own draws, as long as the tree holds them.
    Verdict follow() {
        std::vector<int64_t> alive{0};
        while (true) {
            const Verdict drawn = drawn_after(alive[0]);
            alive = tree.with_token(drawn.next_token, tree.children(alive));
            if (alive.empty()) return drawn;
        }
    }

    Verdict reject() {
        std::vector<int64_t> alive{0};
        while (true) {
            const std::vector<int64_t> candidates = tree.children(alive);
            if (candidates.empty()) return drawn_after(alive[0]);
            TargetRow p = row_after(alive[0], 0);
            if (!p.is_sound()) return {alive[0], -1};
            SiblingRow q(tree.drawn.row(tree.parents[candidates[0]]));
            const int64_t accepted = accept_one(candidates, p, q);
            if (accepted < 0) return {alive[0], p.draw(next_draw())};
            alive = tree.like(accepted, candidates);
        }
    }

    // The first of siblings that passes its test, or -1.
    int64_t accept_one(const std::vector<int64_t>& candidates, TargetRow& p, SiblingRow& q) {
        for (int64_t child : candidates) {
            const int64_t place = tree.drawn.place(child);
            const double drafted = q.chance(place);
            if (drafted == 0) continue;
            if (uniforms.accept(p.chance(tree.tokens[child]) / drafted)) return child;
            p.subtract(q, 1);
            if (tree.drawn.is_distinct()) q.put_aside(place);
        }
        return -1;
    }

    // With a draw of the target's own.
    Verdict drawn_after(int64_t node) {
        return {node, gumbel_argmax_of_logits(tree.logits_after(node), tree.vocabulary,
                                              tree.temperature, next_draw())};
    }

    Verdict select() {
        std::vector<int64_t> alive{0};
        while (true) {
            const std::vector<int64_t> candidates = tree.children(alive);
            if (candidates.empty()) return drawn_after(alive[0]);
            std::vector<float>&p = memory_of(0), &q = memory_of(1);
            p.resize(tree.vocabulary);
            soften_row(tree.logits_after(alive[0]), tree.vocabulary, tree.temperature, p.data());
            if (std::isnan(p[0])) return {alive[0], -1};
            tree.drawn.spread(tree.parents[candidates[0]], tree.vocabulary, q);
            const Selection selection{p, q, (int)candidates.size()};
            const double rho = selection.division_factor();
            const auto accepted =
                std::find_if(candidates.begin(), candidates.end(), [&](int64_t child) {
                    const double drafted = q[tree.tokens[child]];
                    return drafted > 0 &&
                           uniforms.accept(p[tree.tokens[child]] / (rho * drafted));
                });
            if (accepted == candidates.end()) {
                selection.leave(rho);
                return {alive[0], gumbel_argmax(p.data(), tree.vocabulary, next_draw())};
            }
            alive = tree.with_token(tree.tokens[*accepted], candidates);
        }
    }

    Verdict traverse() {
        std::vector<Open> path;
        open(path, {0}, 1);
        while (true) {
            Open& newest = path.back();
            if (newest.tested < newest.children.size()) {
                const int64_t child = newest.children[newest.tested++];
                const double drafted = newest.q.chance(tree.drawn.place(child));
                if (drafted == 0) continue;  // a token that q cannot draw is no draft
                if (!row_of(newest, path.size()).is_sound()) return {newest.nodes[0], -1};
                const double chance = newest.p->chance(tree.tokens[child]),
                             weight = std::min(1.0, newest.weight * chance / drafted);
                if (weight > 0) open(path, tree.like(child, newest.children), weight);
                else remove(newest, child, path.size());
            } else if (path.size() == 1 || uniforms.accept(newest.weight)) {
                const int64_t node = newest.nodes[0];
                return newest.p ? Verdict{node, newest.p->draw(next_draw())} : drawn_after(node);
            } else {
                const int64_t failed = newest.nodes[0];
                path.pop_back();
                remove(path.back(), failed, path.size());
            }
        }
    }

    void open(std::vector<Open>& path, std::vector<int64_t> nodes, double weight) {
        Open made;
        made.children = tree.children(nodes), made.nodes = std::move(nodes), made.weight = weight;
        if (!made.children.empty())
            made.q = SiblingRow(tree.drawn.row(tree.parents[made.children[0]]));
        path.push_back(std::move(made));
    }

    TargetRow& row_of(Open& node, size_t level) {
        if (!node.p) node.p = std::make_unique<TargetRow>(row_after(node.nodes[0], level));
        return *node.p;
    }

    void remove(Open& node, int64_t child, size_t level) {
        const double total = row_of(node, level).subtract(node.q, node.weight);
        node.weight = total > 0 ? total / (total + (1 - node.weight)) : 0;
        if (tree.drawn.is_distinct()) node.q.put_aside(tree.drawn.place(child));
    }
};

}  // namespace draftwood
