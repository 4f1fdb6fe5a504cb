// Products by the unit for small matrices (amx.h).
//
// They are the bits that vectors give. The products of a group's bytes are whole numbers, and what
// follows them is done number by number in the same order.
#include "products.h"

namespace draftwood {

namespace {

// A tile's groups as signed bytes, with their scales, made some groups before they are multiplied:
// the unit reads what vectors stored only once it has reached the cache.
template <int LOW, int HIGH>
class UnpackedGroups {
public:
    static constexpr int MOST = 32;  // that are kept

    UnpackedGroups(const Matrix& matrix, int tile)
        : unpack(matrix.format),
          // products of signed bytes need no correction for the zero point
          flips(Ints{} + (info_of(matrix.format).zero_point ? (int32_t)0x80808080 : 0)),
          planes_of_group(planes(matrix, tile)),
          reader(info_of(matrix.format).scales, scales(matrix, tile)) {}

    // Have all groups before this one, of which the last MOST are kept.
    __attribute__((noinline)) void advance(int to) {
        for (; made < to; made++, planes_of_group += BITS) {
            const int place = made % MOST;
            Ints unsigned_bytes[WORDS];
            unpack(planes_of_group, unsigned_bytes);
            for (int i = 0; i < WORDS; i++) kept[place][i] = unsigned_bytes[i] ^ flips;
            for (int i = 0; i < BITS; i++) __builtin_prefetch(planes_of_group + AHEAD * BITS + i);
            reader.prefetch(AHEAD);
            reader.next(kept_scales[place], kept_offsets[place]);
        }
    }

    const Ints* bytes(int group) const { return kept[group % MOST]; }
    // for the first and, where a format has half groups, the second 16 inputs
    const Floats* scale(int group) const { return kept_scales[group % MOST]; }
    const Floats* offset(int group) const { return kept_offsets[group % MOST]; }

private:
    static constexpr int BITS = LOW + HIGH;

    const Unpacker<LOW, HIGH> unpack;
    const Ints flips;
    const Ints* planes_of_group;
    ScaleReader<kinds_of_codes(LOW, HIGH)> reader;
    int made = 0;
    Ints kept[MOST][WORDS];
    Floats kept_scales[MOST][2], kept_offsets[MOST][2];
};

// One block of rows and a tile's groups, a few at a time: the unit multiplies the next few while
// vectors scale and add its last products. HALVES of a group may have scales of their own.
template <int LOW, int HIGH, bool HALVES>
class BlockOfProducts {
public:
    BlockOfProducts(const Matrix& matrix, const Unit& unit, UnpackedGroups<LOW, HIGH>& weights,
                    const Rows& rows, int block)
        : has_offset(has_offsets(info_of(matrix.format).scales)),
          unit(unit),
          weights(weights),
          values(rows.bytes_for_unit(block)),
          rows(rows),
          block(block) {}

    // Add to the sums of R rows their products with groups [first, last).
    template <int R>
    void add(int first, int last, Floats* sums) {
        multiply(first, last);
        for (int group = first; group < last; group += FEW) {
            multiply(group + FEW, last);
            scale_and_add<R>(group, std::min(last, group + FEW), sums);
        }
    }

private:
    static constexpr int PARTS = HALVES ? 2 : 1;  // of a group
    // A product takes some 120 cycles from its loads to where vectors can read it, and what vectors
    // do for a part of 16 rows some 32.
    static constexpr int FEW = 4 / PARTS;
    static_assert(UnpackedGroups<LOW, HIGH>::MOST % (2 * FEW) == 0);

    const bool has_offset;
    const Unit& unit;
    UnpackedGroups<LOW, HIGH>& weights;
    const int8_t* values;
    const Rows& rows;
    const int block;
    Ints products[2 * FEW][PARTS][UNIT_ROWS];

    // A few groups from this one on, up to `last`. The few after them are unpacked by then.
    void multiply(int group, int last) {
        weights.advance(std::min(last, group + 2 * FEW));
        for (const int end = std::min(last, group + FEW); group < end; group++)
            for (int part = 0; part < PARTS; part++)
                unit.multiply(PARTS == 2 ? part : group % 2,
                              values + (size_t)group * UNIT_ROWS * GROUP + part * GROUP / PARTS,
                              weights.bytes(group) + part * WORDS / PARTS,
                              products[group % (2 * FEW)][part]);
    }

    // In the order of products_of_bytes.cpp.
    template <int R>
    void scale_and_add(int group, int last, Floats* results) const {
        const GroupFacts* facts[] = {rows.facts_of(2 * block),
                                     R > MOST_ROWS ? rows.facts_of(2 * block + 1) : nullptr};
        Floats sums[R];
        for (int r = 0; r < R; r++) sums[r] = results[r];
        for (; group < last; group++)
            for (int part = 0; part < PARTS; part++) {
                const Floats scale = weights.scale(group)[part],
                             offset = weights.offset(group)[part];
                const Ints* product = products[group % (2 * FEW)][part];
                for (int r = 0; r < R; r++) {
                    const GroupFacts& own = facts[r / MOST_ROWS][group];
                    sums[r] = fma(__builtin_convertvector(product[r], Floats),
                                  scale * all(own.scales[r % MOST_ROWS]), sums[r]);
                }
                if (!has_offset) continue;
                for (int r = 0; r < R; r++) {
                    const GroupFacts& own = facts[r / MOST_ROWS][group];
                    sums[r] = fma(offset, all(own.sums[PARTS == 2 ? 1 + part : 0][r % MOST_ROWS]),
                                  sums[r]);
                }
            }
        for (int r = 0; r < R; r++) results[r] = sums[r];
    }
};

// Products of rows [from, to) with a tile; `from` begins a block of the unit.
template <int LOW, int HIGH, bool HALVES>
void unit_products_of_tile(const Matrix& matrix, const Unit& unit, const Rows& rows,
                                  int from, int to, int tile, Floats* results) {
    UnpackedGroups<LOW, HIGH> weights(matrix, tile);
    std::fill(results, results + ceil_div(to - from, UNIT_ROWS) * UNIT_ROWS, Floats{});
    // several blocks of rows share what is unpacked; one alone never waits at a stretch's end
    const int count = groups(matrix), stretch = to - from > UNIT_ROWS ? weights.MOST : count;
    for (int first = 0; first < count; first += stretch) {
        const int last = std::min(count, first + stretch);
        for (int row = from; row < to; row += UNIT_ROWS) {
            BlockOfProducts<LOW, HIGH, HALVES> block(matrix, unit, weights, rows, row / UNIT_ROWS);
            Floats* sums = results + (row - from);
            // rows that are not there are computed too, up to a multiple of 4, and not read
            switch (ceil_div(std::min(UNIT_ROWS, to - row), 4)) {
                case 1: block.template add<4>(first, last, sums); break;
                case 2: block.template add<8>(first, last, sums); break;
                case 3: block.template add<12>(first, last, sums); break;
                default: block.template add<16>(first, last, sums);
            }
        }
    }
    for (int i = 0; i < to - from; i++) results[i] = results[i] * all(matrix.factor);
}

void unit_products(const Matrix& matrix, const Unit& unit, const Rows& rows, int from,
                          int to, int tile, Floats* results) {
    const auto multiply = [&](auto low, auto high, auto halves) {
        unit_products_of_tile<low(), high(), halves()>(matrix, unit, rows, from, to, tile,
                                                       results);
    };
    constexpr std::true_type halved{};
    constexpr std::false_type whole{};
    constexpr std::integral_constant<int, 0> none{};
    constexpr std::integral_constant<int, 1> one{};
    constexpr std::integral_constant<int, 2> two{};
    constexpr std::integral_constant<int, 4> four{};
    constexpr std::integral_constant<int, 8> eight{};
    const FormatInfo& info = info_of(matrix.format);
    switch (info.low * 10 + info.high) {
        case 20: return multiply(two, none, halved);
        case 21:
            return has_half_groups(info.scales) ? multiply(two, one, halved)
                                                : multiply(two, one, whole);
        case 40: return multiply(four, none, whole);
        case 41: return multiply(four, one, whole);
        case 42: return multiply(four, two, halved);
        default: return multiply(eight, none, whole);
    }
}

}  // namespace

void products_by_unit(const Matrix& matrix, const Rows& rows, int count, int first, int last,
                      const Taker& take) {
    constexpr int AT_ONCE = 8 * UNIT_ROWS;  // rows that share what is unpacked
    const bool halved = has_half_groups(info_of(matrix.format).scales);
    const Unit unit(ceil_div(count, 4) * 4, halved ? GROUP / 2 : GROUP);
    Floats results[AT_ONCE];
    // few tiles stay cached while many rows pass by
    const int stretch = count > AT_ONCE ? 4 : last - first;
    for (int begin = first; begin < last; begin += stretch)
        for (int from = 0; from < count; from += AT_ONCE) {
            const int to = std::min(count, from + AT_ONCE);
            for (int tile = begin; tile < std::min(last, begin + stretch); tile++) {
                unit_products(matrix, unit, rows, from, to, tile, results);
                for (int i = 0; matrix.bias && i < to - from; i++)
                    add_bias(matrix, tile, results[i]);
                take({from, to - from, tile, 1, results});
            }
        }
}

}  // namespace draftwood
