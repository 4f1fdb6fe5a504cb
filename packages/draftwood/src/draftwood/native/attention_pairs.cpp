// Attention in bfloat16 where the CPU multiplies pairs at once.
#include "attention_pairs.h"

#if defined(__AVX512BF16__)

#include "turning.h"

namespace draftwood {

namespace {

typedef uint16_t Pairs __attribute__((vector_size(64)));
inline Pairs load_pairs(const bfloat16* from) {
    Pairs pairs;
    std::memcpy(&pairs, from, sizeof pairs);
    return pairs;
}

inline Pairs both(uint32_t pair) { return (Pairs)_mm512_set1_epi32((int)pair); }

inline Floats add_products(Floats sums, Pairs a, Pairs b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
}

// Scores [COUNT][BLOCK] of 16 * GROUPS places with turned keys [dim / 2][GROUPS].
template <int COUNT, int GROUPS, bool FETCHES>
inline void score_turned(const uint32_t* const* queries, const Words* keys, int pairs,
                         float* scores, Ahead ahead) {
    Floats sums[COUNT][GROUPS]{};
    for (int pair = 0; pair < pairs; pair++, keys += GROUPS) {
        for (int i = 0; i < COUNT; i++)
            for (int group = 0; group < GROUPS; group++)
                sums[i][group] =
                    add_products(sums[i][group], (Pairs)keys[group], both(queries[i][pair]));
        if (FETCHES) ahead.fetch(GROUPS);
    }
    for (int i = 0; i < COUNT; i++)
        for (int group = 0; group < GROUPS; group++)
            store(scores + i * BLOCK + group * LANES, sums[i][group]);
}

// Scores of `count` queries for places [first, first + 16 * GROUPS).
template <int GROUPS, class At>
inline void score_places(const uint32_t* const* queries, int count, int dim, At at, int64_t first,
                         Words* keys, float* scores, const Ahead& ahead = {}) {
    for (int group = 0; group < GROUPS; group++) {
        const auto row = at.from(first + group * LANES);
        for (int from = 0; from < dim; from += TWICE)
            turn<GROUPS>([&](int i) { return row(i) + from; }, keys + from / 2 * GROUPS + group);
    }
    in_pieces(count, [&](auto number, int i) {
        constexpr int COUNT = decltype(number)::value;
        (i == 0 && ahead ? score_turned<COUNT, GROUPS, true>
                         : score_turned<COUNT, GROUPS, false>)(queries + i, keys, dim / 2,
                                                               scores + i * BLOCK + first, ahead);
    });
}

// Adds to sums [COUNT] of 64 dimensions from `from` on the values of places [first, last), two at
// a time: the numbers of both stand side by side. Weights are pairs [COUNT][BLOCK].
template <int COUNT, bool FETCHES, class At>
inline void add_values(const uint32_t* weights, At at, int64_t first, int64_t last, int from,
                       float* const* to, Ahead ahead) {
    Floats sums[COUNT][4];
    for (int i = 0; i < COUNT; i++)
        for (int side = 0; side < 4; side++) sums[i][side] = load(to[i] + from + side * LANES);
    for (int64_t place = first; place < last; place += 2) {
        const auto row = at.from(place);
        const bfloat16 *even = row(0) + from, *odd = row(1) + from;
        Pairs sides[4];
        for (int part = 0; part < 2; part++) {
            const __m512i a = (__m512i)load_pairs(even + part * TWICE),
                          b = (__m512i)load_pairs(odd + part * TWICE);
            sides[2 * part] = (Pairs)_mm512_unpacklo_epi16(a, b);
            sides[2 * part + 1] = (Pairs)_mm512_unpackhi_epi16(a, b);
        }
        for (int i = 0; i < COUNT; i++) {
            const Pairs weight = both(weights[i * BLOCK + place / 2]);
            for (int side = 0; side < 4; side++)
                sums[i][side] = add_products(sums[i][side], sides[side], weight);
        }
        if (FETCHES) ahead.fetch(2 * ahead.lines);
    }
    for (int i = 0; i < COUNT; i++)
        for (int side = 0; side < 4; side++) store(to[i] + from + side * LANES, sums[i][side]);
}

// As weigh(), for weights in bfloat16, which take the first half of the scores' room.
inline void weigh_pairs(float* scores, const Stretch& seen, const Average& average) {
    const int end = (int)(seen.last + LANES - 1) / LANES * LANES;
    const auto visible = [&](int i) {
        const uint32_t all = 0xffffu,
                       low = seen.first > i ? all << std::min<int64_t>(LANES, seen.first - i) : all,
                       high = seen.last < i + LANES ? (1u << (seen.last - i)) - 1 : all;
        return (__mmask16)(low & high);
    };
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 most = none;
    Ints odd{};
    for (int i = 0; i < end; i += LANES) {
        const __m512 score = _mm512_mask_loadu_ps(none, visible(i), scores + i);
        most = _mm512_max_ps(most, score), odd |= are_odd((Floats)score);
    }
    average.most() = _mm512_reduce_max_ps(most);
    const Floats base = all(average.most() * -LOG2_OF_E);
    Floats total{};
    for (int i = 0; i < end; i += LANES) {
        const Floats power = power_of_two(fma(load(scores + i), all(LOG2_OF_E), base));
        const __m256i weights = (__m256i)_mm512_maskz_cvtneps_pbh(visible(i), (__m512)power);
        total += (Floats)(_mm512_slli_epi32(_mm512_cvtepu16_epi32(weights), 16));
        _mm256_storeu_si256((__m256i*)((bfloat16*)scores + i), weights);
    }
    average.put_total(total, odd);
}

}  // namespace

void attend_block_in_pairs(const Visibility& visibility, const Together& some,
                           const KeysAndValues<bfloat16>& cache, const Queries<uint32_t>& query_of,
                           Bench& bench) {
    const RowGroup& group = some.group;
    const int dim = cache.dim, heads = some.heads, count = group.count * heads;
    const int64_t start = some.start(),
                  shared = some.shared(),
                  whole = shared / LANES * LANES, even = shared / 2 * 2;
    float* scores = Bench::room(bench.scores, (size_t)count * BLOCK);
    bench.keys.resize(std::max(bench.keys.size(), (size_t)dim));
    bench.queries.resize(count), bench.sums.resize(count);
    int64_t first = BLOCK;
    for (int i = 0; i < count; i++) {
        const int row = group.first + i / heads;
        bench.queries[i] = query_of(row, i % heads);
        bench.sums[i] = some.average(row, i % heads, dim).sums;
        std::fill(bench.sums[i], bench.sums[i] + dim, 0.0f);
        first = std::min(first, some.seen(visibility, row).first / LANES * LANES);
    }
    const auto in_rows = [&](auto act) {
        some.in_rows(visibility, [&](int row, const Stretch& seen) {
            act((row - group.first) * heads, row, seen);
        });
    };
    const auto add_up = [&](int i, int number, auto at, int64_t from, int64_t to,
                            const Ahead& ahead) {
        for (int part = 0; from < to && part < dim; part += 2 * TWICE)
            in_pieces(number, [&](auto piece, int j) {
                constexpr int COUNT = decltype(piece)::value;
                const bool fetches = j == 0 && part == 0 && ahead;
                (fetches ? add_values<COUNT, true, decltype(at)>
                         : add_values<COUNT, false, decltype(at)>)((const uint32_t*)scores +
                                                                       (i + j) * BLOCK,
                                                                   at, from, to, part,
                                                                   &bench.sums[i + j], ahead);
            });
    };

    const SharedPlaces<bfloat16> shared_key{cache.keys, start}, shared_value{cache.values, start};
    const Ahead next_keys =
        start + 2 * BLOCK <= group.shared
            ? Ahead(cache.keys, start + first + BLOCK, (int)(BLOCK - first), dim)
            : Ahead();
    for (int64_t from = first, step; from < whole; from += step) {
        step = std::min<int64_t>(2 * LANES, whole - from);
        fetch_near(shared_key, from + NEAR, std::min(whole, from + NEAR + step), dim);
        const Ahead ahead(cache.values, start + from, (int)step, dim);
        if (step == LANES)
            score_places<1>(bench.queries.data(), count, dim, shared_key, from, bench.keys.data(),
                            scores, ahead);
        else
            score_places<2>(bench.queries.data(), count, dim, shared_key, from, bench.keys.data(),
                            scores, ahead);
    }
    in_rows([&](int i, int row, const Stretch& seen) {
        const auto own = places_of(visibility, some, row, cache.keys);
        for (int64_t from = std::max(whole, seen.first / LANES * LANES); from < seen.last;
             from += LANES)
            score_places<1>(&bench.queries[i], heads, dim, own, from, bench.keys.data(),
                            scores + i * BLOCK);
        for (int head = 0; head < heads; head++) {
            float* weights = scores + (i + head) * BLOCK;
            const Average average = some.average(row, head, dim);
            cap_scores(weights, seen, some.score_cap);
            weigh_pairs(weights, seen, average);
        }
    });
    add_up(0, count, shared_value, first, even, next_keys);
    in_rows([&](int i, int row, const Stretch& seen) {
        const auto own = places_of(visibility, some, row, cache.values);
        add_up(i, heads, own, std::max(even, seen.first / 2 * 2), seen.last, {});
    });
}

}  // namespace draftwood

#endif
