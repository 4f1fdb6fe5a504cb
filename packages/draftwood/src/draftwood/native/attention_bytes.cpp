// Attention over keys and values that are stored in 8 bits, by products of integers.
#include "attention_bytes.h"

#include "dots.h"
#include "turning.h"

namespace draftwood {

namespace {

// Sums, as many as one instruction adds to.
#if defined(DRAFTWOOD_BYTE_DOTS)
typedef Register Sums;
constexpr bool STARTS_AT_ZERO = SUBTRACTS;

inline Sums all_sums(int32_t value) { return all_words((uint32_t)value); }
inline Sums add_keys(Sums sums, Sums keys, uint32_t query) {
    return dot_part(sums, keys, all_words(query), true);
}
inline Sums add_values(Sums sums, Sums values, uint32_t weights) {
    return dot_part(sums, all_words(weights), values, false);
}
#else
typedef Ints Sums;
constexpr bool STARTS_AT_ZERO = false;

inline Sums all_sums(int32_t value) { return Ints{} + value; }
inline Sums add_keys(Sums sums, Sums keys, uint32_t query) {
    for (int byte = 0; byte < QUAD; byte++)
        sums += (Ints)(((Words)keys >> (8 * byte)) & 0xffu) * (int8_t)(query >> (8 * byte));
    return sums;
}
inline Sums add_values(Sums sums, Sums values, uint32_t weights) {
    for (int byte = 0; byte < QUAD; byte++)
        sums += ((values << (24 - 8 * byte)) >> 24) * (int32_t)((weights >> (8 * byte)) & 0xffu);
    return sums;
}
#endif

constexpr int SUM_PARTS = sizeof(Ints) / sizeof(Sums);

inline Ints joined_halves(Ints high, Ints low) { return (high << LOW_BITS) + low; }

// Scores [COUNT][BLOCK] of 16 * GROUPS places with turned keys [words][GROUPS] and their scales.
template <int COUNT, int GROUPS, bool FETCHES>
inline void score_bytes(const uint32_t* const* queries, const Words* keys, int words,
                        const float* scales, float* scores, Ahead ahead) {
    Ints halves[COUNT][2][GROUPS];
    for (int part = 0; part < SUM_PARTS; part++) {
        Sums sums[COUNT][2][GROUPS];
        for (int i = 0; i < COUNT; i++)
            for (int half = 0; half < 2; half++) {
                const ByteQuery query{queries[i], words};
                for (int group = 0; group < GROUPS; group++)
                    sums[i][half][group] = all_sums(STARTS_AT_ZERO ? 0 : query.start(half));
            }
        for (int word = 0; word < words; word++) {
            for (int i = 0; i < COUNT; i++)
                for (int group = 0; group < GROUPS; group++)
                    for (int half = 0; half < 2; half++)
                        sums[i][half][group] =
                            add_keys(sums[i][half][group],
                                     ((const Sums*)(keys + word * GROUPS + group))[part],
                                     queries[i][half * words + word]);
            if (FETCHES && part == 0) ahead.fetch(2 * GROUPS);
        }
        for (int i = 0; i < COUNT; i++)
            for (int half = 0; half < 2; half++)
                for (int group = 0; group < GROUPS; group++)
                    ((Sums*)&halves[i][half][group])[part] = sums[i][half][group];
    }
    for (int i = 0; i < COUNT; i++)
        for (int group = 0; group < GROUPS; group++) {
            const Ints whole = joined_halves(halves[i][0][group], halves[i][1][group]);
            store(scores + i * BLOCK + group * LANES,
                  __builtin_convertvector(whole, Floats) *
                      (load(scales + group * LANES) * ByteQuery{queries[i], words}.scale()));
        }
}

// Scores of `count` queries for places [first, first + 16 * GROUPS).
template <int GROUPS, class At>
inline void score_byte_places(const uint32_t* const* queries, int count, int words, At at,
                              int64_t first, const float* scales, Words* keys, float* scores,
                              const Ahead& ahead = {}) {
    for (int group = 0; group < GROUPS; group++) {
        const uint8_t* rows[LANES];
        const auto row = at.from(first + group * LANES);
        for (int i = 0; i < LANES; i++) rows[i] = row(i);
        int word = 0;
        for (; word + LINE_WORDS <= words; word += LINE_WORDS)
            turn<GROUPS>([&](int i) { return rows[i] + word * QUAD; },
                         keys + word * GROUPS + group);
        turn_words<GROUPS>([&](int i) { return rows[i] + word * QUAD; }, words - word,
                           keys + word * GROUPS + group);
    }
    in_pieces(count, [&](auto number, int i) {
        constexpr int COUNT = decltype(number)::value;
        (i == 0 && ahead ? score_bytes<COUNT, GROUPS, true>
                         : score_bytes<COUNT, GROUPS, false>)(queries + i, keys, words,
                                                              scales + first,
                                                              scores + i * BLOCK + first, ahead);
    });
}

// Scores become weights relative to the largest, in place: of 16 places first the higher halves
// and then the lower ones. Weights have the values' scales [BLOCK] in them and are rounded relative
// to the largest; returns what one step of them is worth.
__attribute__((noinline)) inline float weigh_bytes(float* scores, const float* scales,
                                                   const Stretch& seen, const Average& average) {
    const int first = (int)seen.first / LANES * LANES,
              end = (int)(seen.last + LANES - 1) / LANES * LANES;
    std::fill(scores + first, scores + seen.first, -INFINITY);
    std::fill(scores + seen.last, scores + end, -INFINITY);
    Floats most = all(-INFINITY);
    Ints odd{};
    for (int i = first; i < end; i += LANES) {
        const Floats score = load(scores + i);
        most = larger(most, score), odd |= are_odd(score);
    }
    average.most() = maximum(most);
    const Floats base = all(average.most() * -LOG2_OF_E);
    Floats total{}, largest{};
    for (int i = first; i < end; i += LANES) {
        const Floats score = load(scores + i),
                     scale = chosen(below(all(-INFINITY), score), load(scales + i), Floats{}),
                     power = power_of_two(fma(score, all(LOG2_OF_E), base)), scaled = power * scale;
        total += power, largest = larger(largest, scaled), odd |= are_odd(scaled);
        store(scores + i, scaled);
    }
    average.put_total(total, odd);
    const float top = maximum(largest), inverse = inverse_scale(top, MOST_WEIGHT);
    for (int i = first; i < end; i += LANES) {
        const Ints whole = nearest(load(scores + i) * inverse);
        char* to = (char*)scores + 2 * i;
        store_bytes(to, whole >> LOW_BITS), store_bytes(to + LANES, whole & (LOW_STEPS - 1));
    }
    return top / MOST_WEIGHT;
}

// Where four places' weights lie in the higher halves that weigh_bytes leaves, in words.
inline int64_t quad_place(int64_t place) { return place / LANES * 8 + place % LANES / QUAD; }

// The values of four places side by side: word i has dimension i of all, but for whole lines of
// AVX-512, where in_order() puts them right.
template <class At>
inline void turn_values(At at, int64_t first, int padded, Ints* turned) {
    int from = 0;
    const auto row_of = at.from(first);
#if defined(__AVX512BW__)
    for (; from + (int)LINE <= padded; from += LINE, turned += QUAD) {
        __m512i rows[QUAD];
        for (int i = 0; i < QUAD; i++)
            rows[i] = _mm512_loadu_si512((const void*)(row_of(i) + from));
        const __m512i low = _mm512_unpacklo_epi8(rows[0], rows[1]),
                      high = _mm512_unpackhi_epi8(rows[0], rows[1]),
                      next_low = _mm512_unpacklo_epi8(rows[2], rows[3]),
                      next_high = _mm512_unpackhi_epi8(rows[2], rows[3]);
        turned[0] = (Ints)_mm512_unpacklo_epi16(low, next_low);
        turned[1] = (Ints)_mm512_unpackhi_epi16(low, next_low);
        turned[2] = (Ints)_mm512_unpacklo_epi16(high, next_high);
        turned[3] = (Ints)_mm512_unpackhi_epi16(high, next_high);
    }
#endif
    for (; from < padded; from += LANES, turned++)
        for (int i = 0; i < QUAD; i++) {
            const uint8_t* row = row_of(i) + from;
            for (int lane = 0; lane < LANES; lane++)
                ((uint8_t*)turned)[QUAD * lane + i] = row[lane];
        }
}

// Sums of 64 dimensions as turn_values leaves them.
inline void in_order(Floats* sums) {
#if defined(__AVX512BW__)
    const __m512 low = _mm512_shuffle_f32x4((__m512)sums[0], (__m512)sums[1], 0x44),
                 high = _mm512_shuffle_f32x4((__m512)sums[0], (__m512)sums[1], 0xee),
                 next_low = _mm512_shuffle_f32x4((__m512)sums[2], (__m512)sums[3], 0x44),
                 next_high = _mm512_shuffle_f32x4((__m512)sums[2], (__m512)sums[3], 0xee);
    sums[0] = (Floats)_mm512_shuffle_f32x4(low, next_low, 0x88);
    sums[1] = (Floats)_mm512_shuffle_f32x4(low, next_low, 0xdd);
    sums[2] = (Floats)_mm512_shuffle_f32x4(high, next_high, 0x88);
    sums[3] = (Floats)_mm512_shuffle_f32x4(high, next_high, 0xdd);
#endif
}

// Adds to sums [COUNT][2][sides] of SIDES times 16 dimensions from side `from` on the values of
// four places after the other, turned [quads][sides], with weights [COUNT][BLOCK] from place
// `first` on.
template <int COUNT, int SIDES, bool FETCHES>
inline void add_bytes(const float* weights, const Ints* turned, int sides, int64_t first, int quads,
                      int from, Ints* to, Ahead ahead) {
    for (int part = 0; part < SUM_PARTS; part++) {
        const auto place_of = [&](int i, int half, int side) {
            return (Sums*)(to + (2 * i + half) * sides + from + side) + part;
        };
        Sums sums[COUNT][2][SIDES];
        for (int i = 0; i < COUNT; i++)
            for (int half = 0; half < 2; half++)
                for (int side = 0; side < SIDES; side++)
                    sums[i][half][side] = *place_of(i, half, side);
        for (int quad = 0; quad < quads; quad++) {
            const uint32_t* own = (const uint32_t*)weights + quad_place(first + QUAD * quad);
            const Ints* values = turned + quad * sides + from;
            for (int i = 0; i < COUNT; i++)
                for (int half = 0; half < 2; half++)
                    for (int side = 0; side < SIDES; side++)
                        sums[i][half][side] =
                            add_values(sums[i][half][side], ((const Sums*)(values + side))[part],
                                       own[i * BLOCK + half * QUAD]);
            if (FETCHES && part == 0) ahead.fetch(QUAD * ahead.lines);
        }
        for (int i = 0; i < COUNT; i++)
            for (int half = 0; half < 2; half++)
                for (int side = 0; side < SIDES; side++)
                    *place_of(i, half, side) = sums[i][half][side];
    }
}

// The same for `count` rows of weights and all dimensions.
inline void add_all_bytes(const float* weights, int count, const Ints* turned, int sides,
                          int64_t first, int quads, Ints* to, const Ahead& ahead = {}) {
    in_pieces(count, [&](auto number, int i) {
        constexpr int COUNT = decltype(number)::value;
        const auto add = [&](auto width, int from, bool fetches) {
            constexpr int SIDES = decltype(width)::value;
            (fetches ? add_bytes<COUNT, SIDES, true>
                     : add_bytes<COUNT, SIDES, false>)(weights + i * BLOCK, turned, sides, first,
                                                       quads, from, to + 2 * i * sides, ahead);
        };
        int from = 0;
        for (; from + 2 <= sides; from += 2)
            add(std::integral_constant<int, 2>(), from, ahead && i == 0 && from == 0);
        if (from < sides) add(std::integral_constant<int, 1>(), from, false);
    });
}

}  // namespace

void attend_block_in_bytes(const Visibility& visibility, const Together& some,
                           const ByteCache& stored, const Queries<uint32_t>& query_of,
                           Bench& bench) {
    const RowGroup& group = some.group;
    const KeysAndValues<uint8_t>& cache = stored.bytes;
    const int dim = cache.dim, padded = padded_dim(dim), words = padded / QUAD,
              sides = padded / LANES, heads = some.heads, count = group.count * heads;
    const int64_t start = some.start(),
                  shared = some.shared(),
                  whole = shared / LANES * LANES;
    float* scores = Bench::room(bench.scores, (size_t)count * BLOCK);
    bench.keys.resize(std::max(bench.keys.size(), (size_t)2 * padded / QUAD));
    bench.values.resize(std::max(bench.values.size(), (size_t)BLOCK / QUAD * sides));
    bench.halves.assign((size_t)count * 2 * sides, Ints{});
    bench.steps.resize(count), bench.queries.resize(count);
    int64_t first = BLOCK;
    for (int i = 0; i < count; i++) {
        const int row = group.first + i / heads;
        bench.queries[i] = query_of(row, i % heads);
        first = std::min(first, some.seen(visibility, row).first / LANES * LANES);
    }
    const uint32_t* const* queries = bench.queries.data();
    float *key_scales = bench.key_scales, *scales = bench.value_scales;
    Words* turned_keys = bench.keys.data();
    Ints *turned = bench.values.data(), *sums = bench.halves.data();
    const auto in_rows = [&](auto act) {
        some.in_rows(visibility, [&](int row, const Stretch& seen) {
            act((row - group.first) * heads, row, seen);
        });
    };

    const SharedPlaces<uint8_t> shared_key{cache.keys, start}, shared_value{cache.values, start};
    const Ahead next_keys =
        start + 2 * BLOCK <= group.shared
            ? Ahead(cache.keys, start + first + BLOCK, (int)(BLOCK - first), padded)
            : Ahead();
    for (int64_t i = first; i < whole; i += LANES) {
        std::memcpy(key_scales + i, stored.scales.keys(start + i), LANES * sizeof(float));
        std::memcpy(scales + i, stored.scales.values(start + i), LANES * sizeof(float));
    }
    for (int64_t from = first, step; from < whole; from += step) {
        step = std::min<int64_t>(2 * LANES, whole - from);
        fetch_near(shared_key, from + NEAR, std::min(whole, from + NEAR + step), padded);
        const Ahead ahead(cache.values, start + from, (int)step, padded);
        (step == LANES ? score_byte_places<1, SharedPlaces<uint8_t>>
                       : score_byte_places<2, SharedPlaces<uint8_t>>)(queries, count, words,
                                                                     shared_key, from, key_scales,
                                                                     turned_keys, scores, ahead);
    }
    in_rows([&](int i, int row, const Stretch& seen) {
        const auto own_keys = places_of(visibility, some, row, cache.keys);
        const auto own_key_scales = places_of(visibility, some, row, stored.scales.keys),
                   own_scales = places_of(visibility, some, row, stored.scales.values);
        const int64_t begin = std::max(whole, seen.first / LANES * LANES),
                      end = (seen.last + LANES - 1) / LANES * LANES;
        for (int64_t j = begin; j < end; j++)
            key_scales[j] = *own_key_scales(j), scales[j] = *own_scales(j);
        for (int64_t from = begin; from < seen.last; from += LANES)
            score_byte_places<1>(queries + i, heads, words, own_keys, from, key_scales, turned_keys,
                                 scores + i * BLOCK);
        for (int head = 0; head < heads; head++) {
            float* weights = scores + (i + head) * BLOCK;
            cap_scores(weights, seen, some.score_cap);
            bench.steps[i + head] =
                weigh_bytes(weights, scales, seen, some.average(row, head, dim));
            const int64_t hidden = seen.first / LANES * LANES - first;
            std::memset((char*)weights + 2 * first, 0, 2 * hidden);
        }
    });
    if (first < whole) {
        const int quads = (int)(whole - first) / QUAD;
        for (int quad = 0; quad < quads; quad++)
            turn_values(shared_value, first + QUAD * quad, padded, turned + quad * sides);
        add_all_bytes(scores, count, turned, sides, first, quads, sums, next_keys);
    }
    in_rows([&](int i, int row, const Stretch& seen) {
        const auto own = places_of(visibility, some, row, cache.values);
        const int64_t begin = std::max(whole, seen.first / LANES * LANES);
        const int quads = (int)((seen.last - begin + QUAD - 1) / QUAD);
        for (int quad = 0; quad < quads; quad++)
            turn_values(own, begin + QUAD * quad, padded, turned + quad * sides);
        add_all_bytes(scores + i * BLOCK, heads, turned, sides, begin, quads, sums + 2 * i * sides);
        for (int head = 0; head < heads; head++) {
            const Ints* halves = sums + 2 * (i + head) * sides;
            Floats* results = (Floats*)some.average(row, head, dim).sums;
            const auto result = [&](int side) {
                return __builtin_convertvector(joined_halves(halves[side], halves[sides + side]),
                                               Floats) *
                       bench.steps[i + head];
            };
            int side = 0;
            for (; side + 4 <= sides; side += 4) {
                Floats four[4] = {result(side), result(side + 1), result(side + 2),
                                  result(side + 3)};
                in_order(four);
                for (int j = 0; j < 4; j++) store((float*)(results + side + j), four[j]);
            }
            for (; side < sides; side++) store((float*)(results + side), result(side));
        }
    });
}

}  // namespace draftwood
