// Attention over keys and values that are stored as floats.
#include "attention.h"

namespace draftwood {

namespace {

// A weight in the precision in which values are averaged.
template <class Number>
inline Floats attention_weight(Floats weights) {
    return weights;
}

#if defined(__AVX512BF16__)
template <>
inline Floats attention_weight<bfloat16>(Floats weights) {
    Words bits = (Words)weights;
    return (Floats)((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}
#endif

// Scores [16 * n] become weights relative to the largest; those outside of `seen` become 0.
template <class Number>
inline void weigh(float* scores, const Stretch& seen, const Average& average) {
    const int end = (int)(seen.last + LANES - 1) / LANES * LANES;
    Ints lanes{};
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane;
    const auto seen_of = [&](int i) {
        const Ints places = lanes + i;
        return ~below(places, Ints{} + (int)seen.first) & below(places, Ints{} + (int)seen.last);
    };
    Floats most = all(-INFINITY), total{};
    for (int i = 0; i < end; i += LANES) {
        const Floats score = chosen(seen_of(i), load(scores + i), all(-INFINITY));
        store(scores + i, score);
        most = larger(most, score);
    }
    average.most() = maximum(most);
    const Floats top = all(average.most());
    for (int i = 0; i < end; i += LANES) {
        Floats score = load(scores + i);
        Floats weights = attention_weight<Number>(exponential(score - top));
        weights = chosen(seen_of(i), weights, Floats{});
        store(scores + i, weights);
        total += weights;
    }
    average.total() = sum(total);
}

// Scores [COUNT][BLOCK] of queries [COUNT][dim], four places at a time.
template <int COUNT, class Number>
inline void score(const float* queries, int dim, const Places<Number>& keys, float* scores) {
    const int even = dim / LANES * LANES;
    for (int64_t i = keys.seen.first / 4 * 4; i < keys.seen.last; i += 4) {
        const Number* four[4] = {keys(i), keys(i + 1), keys(i + 2), keys(i + 3)};
        for (int j = 0; j < 4; j++)
            fetch<3>(keys(i + j + PLACES_AHEAD), dim);
        Floats sums[COUNT][4]{};
        for (int from = 0; from < even; from += LANES)
            for (int j = 0; j < 4; j++) {
                Floats key = load(four[j] + from);
                for (int head = 0; head < COUNT; head++)
                    sums[head][j] = fma(load(queries + head * dim + from), key, sums[head][j]);
            }
        for (int head = 0; head < COUNT; head++) {
            for (int j = 0; j < 4; j++)
                for (int k = even; k < dim; k++)
                    sums[head][j][0] += queries[head * dim + k] * to_float(four[j][k]);
            store_sums(scores + head * BLOCK + i, sums[head]);
        }
    }
}

// Sums of dimensions [from, from + 16 * PARTS) with weights [COUNT][BLOCK].
template <int COUNT, int PARTS, class Number>
inline void average_part(const float* weights, const Places<Number>& values, int from,
                         const Average* results) {
    Floats sums[COUNT][PARTS]{};
    for (int64_t i = values.seen.first; i < values.seen.last; i++) {
        const Number* value = values(i) + from;
        fetch<3>(values(i + PLACES_AHEAD) + from, PARTS * LANES);
        for (int part = 0; part < PARTS; part++) {
            Floats numbers = load(value + part * LANES);
            for (int head = 0; head < COUNT; head++)
                sums[head][part] = fma(all(weights[head * BLOCK + i]), numbers, sums[head][part]);
        }
    }
    for (int head = 0; head < COUNT; head++)
        for (int part = 0; part < PARTS; part++)
            store(results[head].sums + from + part * LANES, sums[head][part]);
}

template <int COUNT, class Number>
inline void average(const float* weights, const Places<Number>& values, const Average* results) {
    const int dim = results[0].dim;
    int from = 0;
    for (; from + 4 * LANES <= dim; from += 4 * LANES)
        average_part<COUNT, 4>(weights, values, from, results);
    for (; from + LANES <= dim; from += LANES)
        average_part<COUNT, 1>(weights, values, from, results);
    for (; from < dim; from++)
        for (int head = 0; head < COUNT; head++) {
            float average = 0;
            for (int64_t i = values.seen.first; i < values.seen.last; i++)
                average += weights[head * BLOCK + i] * to_float(values(i)[from]);
            results[head].sums[from] = average;
        }
}

template <class Number>
void attend(const Visibility& visibility, const Together& some, const KeysAndValues<Number>& cache,
            const Queries<float>& queries, Bench& bench) {
    float* scores = Bench::room(bench.scores, 4 * BLOCK);
    for (int row = some.group.first; row < some.group.first + some.group.count; row++) {
        const Stretch seen = some.seen(visibility, row);
        if (seen.empty()) continue;
        const auto keys = places_of(visibility, some, row, cache.keys),
                   values = places_of(visibility, some, row, cache.values);
        in_pieces(some.heads, [&](auto number, int head) {
            constexpr int COUNT = decltype(number)::value;
            score<COUNT>(queries(row, head), cache.dim, keys, scores);
            Average results[COUNT];
            for (int i = 0; i < COUNT; i++) {
                results[i] = some.average(row, head + i, cache.dim);
                cap_scores(scores + i * BLOCK, seen, some.score_cap);
                weigh<Number>(scores + i * BLOCK, seen, results[i]);
            }
            average<COUNT>(scores, values, results);
        });
    }
}

}  // namespace

void attend_block(const Visibility& visibility, const Together& some,
                  const KeysAndValues<float>& cache, const Queries<float>& queries, Bench& bench) {
    attend(visibility, some, cache, queries, bench);
}

void attend_block(const Visibility& visibility, const Together& some,
                  const KeysAndValues<bfloat16>& cache, const Queries<float>& queries,
                  Bench& bench) {
    attend(visibility, some, cache, queries, bench);
}

}  // namespace draftwood
