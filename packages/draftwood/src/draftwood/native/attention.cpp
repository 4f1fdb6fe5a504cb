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
    Ints odd{};
    for (int i = 0; i < end; i += LANES) {
        const Floats score = chosen(seen_of(i), load(scores + i), all(-INFINITY));
        store(scores + i, score);
        most = larger(most, score), odd |= are_odd(score);
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
    average.put_total(total, odd);
}

// Rows of floats of a few places, those of a cache of floats where they lie.
template <class Number>
class PlacesRead {
public:
    static constexpr int MOST = CACHE_BLOCK;

    // Of places [first, last), which lie at(place); others follow up to `end`.
    template <class At>
    PlacesRead(At at, int64_t first, int64_t last, int64_t end, int dim, std::vector<Floats>& room)
        : count((int)(last - first)) {
        const size_t stride = (size_t)(dim + LANES - 1) / LANES * LANES;
        float* copies = Bench::room(room, MOST * stride);
        for (int i = 0; i < count; i++) {
            fetch<3>(at(std::min<int64_t>(first + i + PLACES_AHEAD, end - 1)), dim);
            const Number* row = at(first + i);
            if constexpr (std::is_same_v<Number, float>) rows[i] = row;
            else rows[i] = widened(row, dim, copies + i * stride);
        }
    }

    const int count;
    const float* rows[MOST];

private:
    static const float* widened(const Number* row, int dim, float* to) {
        const int even = dim / LANES * LANES;
        for (int i = 0; i < even; i += LANES) store(to + i, load(row + i));
        for (int i = even; i < dim; i++) to[i] = to_float(row[i]);
        return to;
    }
};

constexpr int ROOM = BLOCK + LANES;  // of a query's scores, as some are written behind the last

// What dimensions behind the last vector add to the sums.
__attribute__((noinline)) void add_rest(const float* query, const float* const (&keys)[4], int from,
                                        int dim, Part (&sums)[4][PARTS_OF_VECTOR]) {
    for (int j = 0; j < 4; j++)
        for (int k = from; k < dim; k++) sums[j][0][0] += query[k] * keys[j][k];
}

// Scores [COUNT][ROOM] of queries [COUNT][dim] for `count` places whose keys are `keys`, four at a
// time.
template <int COUNT>
inline void score(const float* queries, int dim, const float* const* keys, int count,
                  float* scores) {
    const int even = dim / LANES * LANES;
    for (int first = 0; first < count; first += 4) {
        const float* four[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) four[j] = keys[std::min(first + j, count - 1)];
        Part sums[COUNT][4][PARTS_OF_VECTOR]{};
        for (int from = 0; from < even; from += LANES)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS_OF_VECTOR; part++) {
                const int place = from + part * LANES_OF_PART;
                Part own[COUNT];
                for (int i = 0; i < COUNT; i++) own[i] = load_part(queries + i * dim + place);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                    const Part key = load_part(four[j] + place);
                    for (int i = 0; i < COUNT; i++)
                        sums[i][j][part] = fma_parts(own[i], key, sums[i][j][part]);
                }
            }
        for (int i = 0; i < COUNT; i++) {
            if (even < dim) add_rest(queries + i * dim, four, even, dim, sums[i]);
            store_sums(scores + i * ROOM + first, sums[i]);
        }
    }
}

// Adds to sums [COUNT] of 16 * PIECES dimensions from `from` on the values of `count` places, with
// weights [COUNT][ROOM].
template <int COUNT, int PIECES>
inline void add_values(const float* weights, const float* const* values, int count, int from,
                       float* const* to) {
    constexpr int PARTS = PIECES * PARTS_OF_VECTOR;
    Part sums[COUNT][PARTS];
    for (int i = 0; i < COUNT; i++)
        for (int part = 0; part < PARTS; part++)
            sums[i][part] = load_part(to[i] + from + part * LANES_OF_PART);
    for (int place = 0; place < count; place++) {
        Part own[COUNT];
        for (int i = 0; i < COUNT; i++) own[i] = all_of_part(weights[i * ROOM + place]);
#pragma GCC unroll 8
        for (int part = 0; part < PARTS; part++) {
            const Part numbers = load_part(values[place] + from + part * LANES_OF_PART);
            for (int i = 0; i < COUNT; i++)
                sums[i][part] = fma_parts(own[i], numbers, sums[i][part]);
        }
    }
    for (int i = 0; i < COUNT; i++)
        for (int part = 0; part < PARTS; part++)
            store_part(to[i] + from + part * LANES_OF_PART, sums[i][part]);
}

template <int COUNT>
inline void add_values(const float* weights, const float* const* values, int count, int dim,
                       float* const* to) {
    // whose sums registers hold
    constexpr int PIECES = PARTS_OF_VECTOR == 1 || COUNT == 1 ? 4 : COUNT < 4 ? 2 : 1;
    int from = 0;
    for (; from + PIECES * LANES <= dim; from += PIECES * LANES)
        add_values<COUNT, PIECES>(weights, values, count, from, to);
    for (; from + LANES <= dim; from += LANES)
        add_values<COUNT, 1>(weights, values, count, from, to);
    for (; from < dim; from++)
        for (int i = 0; i < COUNT; i++)
            for (int place = 0; place < count; place++)
                to[i][from] += weights[i * ROOM + place] * values[place][from];
}

// Attention of rows with all their heads to one block.
template <class Number>
class BlockOfPlaces {
public:
    BlockOfPlaces(const Visibility& visibility, const Together& some,
                  const KeysAndValues<Number>& cache, const Queries<float>& queries, Bench& bench)
        : visibility(visibility),
          some(some),
          cache(cache),
          queries(queries),
          bench(bench),
          start(some.start()),
          shared(some.shared()),
          scores(Bench::room(bench.scores, (size_t)some.group.count * some.heads * ROOM)) {}

    void attend() {
        over_places(cache.keys, [&](int row, int64_t first, int count, const float* const* keys) {
            in_pieces<SCORED>(some.heads, [&](auto number, int head) {
                score<number()>(queries(row, head), cache.dim, keys, count,
                                scores_of(row, head) + first);
            });
        });
        some.in_rows(visibility, [&](int row, const Stretch& seen) {
            for (int head = 0; head < some.heads; head++) {
                const Average average = some.average(row, head, cache.dim);
                cap_scores(scores_of(row, head), seen, some.score_cap);
                weigh<Number>(scores_of(row, head), seen, average);
                std::fill(average.sums, average.sums + cache.dim, 0.0f);
            }
        });
        over_places(cache.values, [&](int row, int64_t first, int count,
                                      const float* const* values) {
            in_pieces(some.heads, [&](auto number, int head) {
                constexpr int COUNT = decltype(number)::value;
                float* sums[COUNT];
                for (int i = 0; i < COUNT; i++)
                    sums[i] = some.average(row, head + i, cache.dim).sums;
                add_values<COUNT>(scores_of(row, head) + first, values, count, cache.dim, sums);
            });
        });
    }

private:
    // Queries whose sums registers hold.
    static constexpr int SCORED = PARTS_OF_VECTOR == 1 ? 4 : 1;

    const Visibility& visibility;
    const Together& some;
    const KeysAndValues<Number>& cache;
    const Queries<float>& queries;
    Bench& bench;
    const int64_t start, shared;  // the block's first place; tokens of it that rows share
    float* const scores;          // [rows][heads][ROOM]

    float* scores_of(int row, int head) const {
        return scores + ((size_t)(row - some.group.first) * some.heads + head) * ROOM;
    }

    // act(row, first, count, numbers) with what each row sees, in its order: places that are shared
    // are read once for all rows.
    template <class Act>
    void over_places(const Stored<Number>& stored, Act act) {
        Stretch all{BLOCK, 0};
        some.in_rows(visibility, [&](int, const Stretch& seen) {
            all.first = std::min(all.first, seen.first), all.last = std::max(all.last, seen.last);
        });
        const SharedPlaces<Number> places{stored, start};
        const int64_t end = std::min(all.last, shared);
        in_tiles(all.first, end, [&](int64_t first, int64_t last) {
            const PlacesRead<Number> read(places, first, last, end, cache.dim, bench.floats);
            some.in_rows(visibility, [&](int row, const Stretch& seen) {
                const int64_t from = std::max(first, seen.first), to = std::min(last, seen.last);
                if (from < to) act(row, from, (int)(to - from), read.rows + (from - first));
            });
        });
        some.in_rows(visibility, [&](int row, const Stretch& seen) {
            const auto own = places_of(visibility, some, row, stored);
            in_tiles(std::max(shared, seen.first), seen.last, [&](int64_t first, int64_t last) {
                const PlacesRead<Number> read(own, first, last, seen.last, cache.dim, bench.floats);
                act(row, first, read.count, read.rows);
            });
        });
    }

    template <class Act>
    static void in_tiles(int64_t first, int64_t last, Act act) {
        constexpr int MOST = PlacesRead<Number>::MOST;
        for (int64_t next; first < last; first = next) {
            next = std::min(last, (first / MOST + 1) * MOST);
            act(first, next);
        }
    }
};

}  // namespace

void attend_block(const Visibility& visibility, const Together& some,
                  const KeysAndValues<float>& cache, const Queries<float>& queries, Bench& bench) {
    BlockOfPlaces<float>(visibility, some, cache, queries, bench).attend();
}

void attend_block(const Visibility& visibility, const Together& some,
                  const KeysAndValues<bfloat16>& cache, const Queries<float>& queries,
                  Bench& bench) {
    BlockOfPlaces<bfloat16>(visibility, some, cache, queries, bench).attend();
}

}  // namespace draftwood
