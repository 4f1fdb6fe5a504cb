// Attention of a group of rows, for heads that share keys and values, block by block.
//
// In each block of a text (visibility.h) scores become weights relative to the block's own maximum;
// the blocks' averages are joined in the order of the text. A row's sums therefore run over its own
// text in a fixed order, whichever rows are computed beside it and whichever thread does a block.
//
// Each kind of cache has a file of its own: floats are here and in attention.cpp, pairs of bfloat16
// numbers in attention_pairs, bytes in attention_bytes.
#pragma once

#include <type_traits>
#include <vector>

#include "activations.h"
#include "visibility.h"

namespace draftwood {

constexpr size_t LINE = 64, PLACES_AHEAD = 12;
constexpr int64_t NEAR = 64;  // places that are asked for ahead of reading

// One head's keys and values in the cache.
template <class Number>
struct KeysAndValues {
    Stored<Number> keys, values;
    int dim;
};

// Tokens of a block that texts share.
template <class Number>
struct SharedPlaces {
    Stored<Number> numbers;
    int64_t start;  // of the block

    const Number* operator()(int64_t i) const { return numbers(start + i); }
    // of up to 16 places behind a multiple of as many
    Neighbours<Number> from(int64_t i) const { return numbers.neighbours(start + i); }
};

// Where something is no number or infinite.
inline Ints are_odd(Floats values) { return ~below(values, all(INFINITY)); }

// For one row and head: weighted sums of values [dim] in the order of their kernel, then the
// largest score and the sum of the weights.
struct Average {
    float* sums;
    int dim;

    static size_t size(int dim) { return (size_t)(dim + LANES - 1) / LANES * LANES + LANES; }
    float& most() const { return sums[size(dim) - LANES]; }
    float& total() const { return sums[size(dim) - LANES + 1]; }

    // Take the sum of a block's weights behind its largest score. It is no number where a score or
    // a scale is odd, or all scores are minus infinity: weights by themselves would hide that.
    void put_total(Floats weights, Ints odd) const {
        total() = any(odd) || most() == -INFINITY ? NAN : sum(weights);
    }

    // Goes on with a later block, or begins with it.
    void join(const Average& block, bool is_first) const {
        if (is_first) return (void)std::memcpy(sums, block.sums, size(dim) * sizeof(float));
        const float top = std::max(most(), block.most());
        const Floats old = exponential(all(most() - top)),
                     young = exponential(all(block.most() - top));
        for (int i = 0; i < dim; i += LANES)
            store(sums + i, fma(load(block.sums + i), young, load(sums + i) * old));
        total() = total() * old[0] + block.total() * young[0];
        most() = top;
    }

    // Something with this score that holds nothing was seen too (Xiao et al. 2023,
    // arXiv:2309.17453).
    void add_sink(float score) const { total() += std::exp(score - most()); }
};

// Rows times heads that go over a block together, first all heads of the first row.
struct Together {
    const RowGroup& group;
    int block, heads;
    int64_t window;
    float* averages;      // [rows][stride][Average::size(dim)], of which each row has `heads`
    int stride;
    float score_cap = 0;  // 0 for none

    Average average(int row, int head, int dim) const {
        const size_t place = (size_t)(row - group.first) * stride + head;
        return {averages + place * Average::size(dim), dim};
    }

    int64_t start() const { return (int64_t)block * BLOCK; }
    // Tokens of the block that the rows share.
    int64_t shared() const {
        return std::max<int64_t>(0, std::min<int64_t>(BLOCK, group.shared - start()));
    }

    // What a row sees of the block, counted from its beginning.
    Stretch seen(const Visibility& visibility, int row) const {
        const Stretch text = visibility.seen(row, window);
        return {std::max<int64_t>(0, text.first - start()),
                std::min<int64_t>(BLOCK, text.last - start())};
    }

    // act(row, seen) for rows that see something of it.
    template <class Act>
    void in_rows(const Visibility& visibility, Act act) const {
        for (int row = group.first; row < group.first + group.count; row++) {
            const Stretch stretch = seen(visibility, row);
            if (!stretch.empty()) act(row, stretch);
        }
    }
};

// Scores [16 * n] stay within a cap, unless it is 0.
inline void cap_scores(float* scores, const Stretch& seen, float cap) {
    for (int i = 0; cap && i < (int)seen.last; i += LANES)
        store(scores + i, capped(load(scores + i), cap));
}

// Where the tokens of a block that one row sees lie, its keys or its values.
template <class Number>
struct Places {
    Stored<Number> numbers;
    int64_t start;       // of the block
    int64_t shared;      // tokens of the block that texts share; negative for a later block
    const int32_t* own;  // places of the others
    Stretch seen;

    struct Few {
        const Places& places;
        int64_t first;

        const Number* operator()(int64_t i) const { return places(first + i); }
    };

    // What lies next to the tokens seen is read where the nearest of them is.
    const Number* operator()(int64_t i) const {
        i = std::max(seen.first, std::min(i, seen.last - 1));
        return numbers(i < shared ? start + i : own[i - shared]);
    }

    Few from(int64_t i) const { return {*this, i}; }
};

// Ask the memory for what is needed a little later.
template <int CACHE, class Number>
inline void fetch(const Number* numbers, int count) {
    for (size_t line = 0; line < count * sizeof(Number); line += LINE)
        __builtin_prefetch((const char*)numbers + line, 0, CACHE);
}

// Asks the memory for lines of rows that are needed later, a few at a time, so that it and the
// multipliers are at work together.
struct Ahead {
    const char *row = nullptr, *end = nullptr;  // the next, and behind the last in its block
    Blocks block = nullptr;                     // that it lies in
    size_t offset = 0, stride = 0;              // bytes
    int left = 0;                               // rows in the blocks behind it
    int lines = 1, line = 0;                    // of a row; the next

    Ahead() = default;
    template <class Number>
    Ahead(const Stored<Number>& numbers, int64_t first, int count, int width)
        : row((const char*)numbers(first)),
          block(numbers.blocks + first / CACHE_BLOCK),
          offset(numbers.offset),
          stride(numbers.stride * sizeof(Number)),
          lines((int)((width * sizeof(Number) + LINE - 1) / LINE)) {
        const int here = std::min(count, CACHE_BLOCK - (int)(first % CACHE_BLOCK));
        end = row + here * stride, left = count - here;
    }

    explicit operator bool() const { return row < end; }

    void fetch(int count) {
        for (; count > 0 && row < end; count--) {
            __builtin_prefetch(row + line * LINE, 0, 2);
            if (++line < lines) continue;
            line = 0, row += stride;
            if (row == end && left) go_on();
        }
    }

    void go_on() {
        const int here = std::min(left, CACHE_BLOCK);
        row = (const char*)*++block + offset, end = row + here * stride, left -= here;
    }
};

template <class Number>
inline Places<Number> places_of(const Visibility& visibility, const Together& some, int row,
                                const Stored<Number>& numbers) {
    const int64_t start = some.start();
    return {numbers, start, some.group.shared - start, visibility.own_places(row),
            some.seen(visibility, row)};
}

// The same for shared places [first, last), both multiples of 16.
template <class Number>
inline void fetch_near(const SharedPlaces<Number>& places, int64_t first, int64_t last, int width) {
    for (; first < last; first += LANES) {
        const auto row = places.from(first);
        for (int i = 0; i < LANES; i++) fetch<3>(row(i), width);
    }
}

// What a thread needs while it goes over a block.
struct Bench {
    std::vector<Floats> scores, averages, joined, floats;
    std::vector<Words> keys;
    std::vector<const uint32_t*> queries;
    std::vector<float*> sums;
    // of bytes: turned; sums of each query's halves; what a step of its weights is worth
    std::vector<Ints> values, halves;
    std::vector<float> steps;
    float key_scales[BLOCK], value_scales[BLOCK];

    static float* room(std::vector<Floats>& values, size_t floats) {
        if (values.size() * LANES < floats) values.resize((floats + LANES - 1) / LANES);
        return (float*)values.data();
    }
};

// Where the queries of rows lie, each of all heads.
template <class Number>
struct Queries {
    const Number* first;
    size_t row, head;  // numbers from one to the next

    const Number* operator()(int number, int of_head) const {
        return first + number * row + of_head * head;
    }
};

// act(number, first) for pieces of at most MOST of `count` things, whose sums fit into registers.
template <int MOST = 4, class Act>
inline void in_pieces(int count, Act act) {
    int first = 0;
    for (; first + MOST <= count; first += MOST) act(std::integral_constant<int, MOST>(), first);
    if constexpr (MOST > 1) in_pieces<MOST - 1>(count - first, [&](auto number, int from) {
        act(number, first + from);
    });
}

// Averages over one block, of queries whose heads lie one behind the other.
void attend_block(const Visibility& visibility, const Together& some,
                  const KeysAndValues<float>& cache, const Queries<float>& queries, Bench& bench);
void attend_block(const Visibility& visibility, const Together& some,
                  const KeysAndValues<bfloat16>& cache, const Queries<float>& queries,
                  Bench& bench);

// Sums in the order of a kernel, divided by the sum of the weights.
inline void finish(const Average& average, float* results) {
    for (int i = 0; i < average.dim; i++) results[i] = average.sums[i] / average.total();
}

}  // namespace draftwood
