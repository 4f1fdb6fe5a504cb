// How weights are stored: floats, and the block formats of GGUF files in an order in which products
// read them.
//
// A tile is 16 outputs, a group is 32 inputs. The codes of a tile's group, 2 to 8 bits each, are
// split into planes of bits: first the low 2, 4 or 8 bits of all codes, then the high ones. A few
// shifts and masks on whole vectors turn planes into bytes. Scales lie apart, in the precision of
// the file: nothing that a file says is rounded.
#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace draftwood {

constexpr int GROUP = 32;         // inputs whose codes lie together
constexpr int SUPER_BLOCK = 256;  // inputs that share 16-bit scales in the K formats
constexpr int GROUPS_OF_BLOCK = SUPER_BLOCK / GROUP;

enum Format : int32_t {
    FLOAT32,
    FLOAT16,
    BFLOAT16,
    Q4_0,
    Q4_1,  // also made here, from weights on 16 even steps
    Q5_0,
    Q5_1,
    Q8_0,  // also made here, from any weights
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    IQ2_XXS,
    IQ3_XXS,
    FORMATS
};

// How the scales of a tile's groups are stored.
enum Scales : int32_t {
    NO_SCALES,
    HALF,             // per group 16 float16 scales
    HALF_OFFSET,      // per group 16 float16 scales and 16 float16 offsets
    EXPONENT,         // per group 16 bytes, powers of 2
    SUPER,            // per 256 inputs 16 float16; per group 16 int8 that they are multiplied with
    SUPER_OFFSET,     // likewise scales and, negative, offsets
    SUPER_OF_HALVES,  // as SUPER, with int8 factors for each 16 inputs
    SUPER_NIBBLES,    // as SUPER_OFFSET for each 16 inputs; two factors of 4 bits in a byte
};

// weight = factor * (scale * (byte - zero_point) + offset), where byte is the code's entry in the
// table, or the code + addend where it has more than 4 bits.
struct FormatInfo {
    const char* name;
    int low, high;  // bits of a code
    Scales scales;
    int zero_point;  // 0 or 128
    int addend;
    float factor;
    int8_t values[16];  // of 4-bit codes that are not evenly spaced; all zero where they are
};

constexpr int8_t NO_VALUES = 0;

inline constexpr FormatInfo INFOS[FORMATS] = {
    {"F32", 32, 0, NO_SCALES, 0, 0, 1, {NO_VALUES}},
    {"F16", 16, 0, NO_SCALES, 0, 0, 1, {NO_VALUES}},
    {"BF16", 16, 0, NO_SCALES, 0, 0, 1, {NO_VALUES}},
    {"Q4_0", 4, 0, HALF, 128, 120, 1, {NO_VALUES}},
    {"Q4_1", 4, 0, HALF_OFFSET, 0, 0, 1, {NO_VALUES}},
    {"Q5_0", 4, 1, HALF, 128, 112, 1, {NO_VALUES}},
    {"Q5_1", 4, 1, HALF_OFFSET, 0, 0, 1, {NO_VALUES}},
    {"Q8_0", 8, 0, HALF, 128, 0, 1, {NO_VALUES}},
    {"Q2_K", 2, 0, SUPER_NIBBLES, 0, 0, 1, {NO_VALUES}},
    {"Q3_K", 2, 1, SUPER_OF_HALVES, 128, 124, 1, {NO_VALUES}},
    {"Q4_K", 4, 0, SUPER_OFFSET, 0, 0, 1, {NO_VALUES}},
    {"Q5_K", 4, 1, SUPER_OFFSET, 0, 0, 1, {NO_VALUES}},
    {"Q6_K", 4, 2, SUPER_OF_HALVES, 128, 96, 1, {NO_VALUES}},
    {"IQ4_NL",
     4,
     0,
     HALF,
     128,
     0,
     1,
     {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}},
    {"IQ4_XS",
     4,
     0,
     SUPER,
     128,
     0,
     1,
     {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}},
    {"MXFP4",
     4,
     0,
     EXPONENT,
     128,
     0,
     1,
     {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}},
    {"IQ2_XXS", 2, 1, SUPER, 128, 0, 1.0f / 8, {8, 25, 43, 0, -8, -25, -43, 0}},
    {"IQ3_XXS",
     4,
     0,
     SUPER,
     128,
     0,
     1.0f / 4,
     {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62}},
};

inline const FormatInfo& info_of(int32_t format) { return INFOS[format]; }

inline int ceil_div(int number, int unit) { return (number + unit - 1) / unit; }

inline bool is_quantised(int32_t format) { return format > BFLOAT16; }
inline int bits_of(int32_t format) { return info_of(format).low + info_of(format).high; }

// A format whose scales each cover 16 inputs.
constexpr bool has_half_groups(Scales scales) {
    return scales == SUPER_OF_HALVES || scales == SUPER_NIBBLES;
}

constexpr bool has_offsets(Scales scales) {
    return scales == HALF_OFFSET || scales == SUPER_OFFSET || scales == SUPER_NIBBLES;
}

// Inputs of which there must be whole blocks.
inline int block_of(int32_t format) {
    return info_of(format).scales >= SUPER ? SUPER_BLOCK : GROUP;
}

// Bytes of the scales of a tile's block.
inline int scale_bytes(Scales scales) {
    constexpr int halves = LANES * sizeof(float16), factors = LANES * GROUPS_OF_BLOCK;
    switch (scales) {
        case HALF: return halves;
        case HALF_OFFSET: return 2 * halves;
        case EXPONENT: return LANES;
        case SUPER: return halves + factors;
        case SUPER_OFFSET: return 2 * halves + 2 * factors;
        case SUPER_OF_HALVES: return halves + 2 * factors;
        case SUPER_NIBBLES: return 2 * halves + 2 * factors;
        default: return 0;
    }
}

// Sixteen bytes, or int8 numbers, as floats.
DRAFTWOOD_INLINE Floats floats_of(const int8_t* bytes) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)bytes)));
#elif defined(__AVX2__)
    Floats values;
    for (int part = 0; part < 2; part++)
        ((__m256*)&values)[part] = _mm256_cvtepi32_ps(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(bytes + part * LANES / 2))));
    return values;
#else
    Floats values;
    for (int lane = 0; lane < LANES; lane++) values[lane] = bytes[lane];
    return values;
#endif
}

// Kinds of scales, a bit each.
using ScaleKinds = uint32_t;
constexpr ScaleKinds EVERY_KIND = ~0u;

// Those that formats with codes of so many bits have.
constexpr ScaleKinds kinds_of_codes(int low, int high) {
    ScaleKinds kinds = 0;
    for (const FormatInfo& info : INFOS)
        if (info.low == low && info.high == high) kinds |= 1u << info.scales;
    return kinds;
}

// And with offsets, or without; and for halves of groups, or for whole ones.
constexpr ScaleKinds kinds_of_codes(int low, int high, bool offset, bool halves) {
    ScaleKinds kinds = kinds_of_codes(low, high);
    for (const FormatInfo& info : INFOS)
        if (has_offsets(info.scales) != offset || has_half_groups(info.scales) != halves)
            kinds &= ~(1u << info.scales);
    return kinds;
}

// Whether codes are not evenly spaced.
constexpr bool has_table(const FormatInfo& info) {
    for (const int8_t value : info.values)
        if (value != 0) return true;
    return false;
}

// The largest number of tables for such codes.
constexpr int most_of_tables(int low, int high) {
    int most = 0;
    for (const FormatInfo& info : INFOS)
        for (const int8_t value : info.values)
            if (info.low == low && info.high == high)
                most = std::max(most, value < 0 ? -value : +value);
    return most;
}

// Scales and offsets of a tile, group by group, of one of some kinds: what is compiled for others
// would only take the compiler's time.
template <ScaleKinds KINDS = EVERY_KIND>
class ScaleReader {
public:
    ScaleReader(Scales kind, const void* scales) : kind(kind), at((const uint8_t*)scales) {}

    // Of the next group: for its first and its second 16 inputs.
    DRAFTWOOD_INLINE void next(Floats* scale, Floats* offset) {
        constexpr int halves = LANES * sizeof(float16), factors = LANES * GROUPS_OF_BLOCK;
        if (is(HALF)) {
            scale[0] = load((const float16*)at), at += halves;
        } else if (is(HALF_OFFSET)) {
            scale[0] = load((const float16*)at), offset[0] = load((const float16*)at + LANES);
            at += 2 * halves;
        } else if (is(EXPONENT)) {
            scale[0] = powers_of_two(at), at += LANES;
        } else if (is(SUPER) || is(SUPER_OF_HALVES)) {
            if (group == 0) super_scale = load((const float16*)at), at += halves;
            scale[0] = super_scale * floats_of((const int8_t*)at);
            if (is(SUPER)) scale[1] = scale[0];
            else scale[1] = super_scale * floats_of((const int8_t*)at + LANES), at += LANES;
            at += LANES;
            count();
        } else if (is(SUPER_OFFSET)) {
            if (group == 0) begin_block();
            scale[0] = super_scale * floats_of((const int8_t*)at);
            offset[0] = super_offset * floats_of((const int8_t*)at + factors);
            at += LANES;
            if (group == GROUPS_OF_BLOCK - 1) at += factors;
            count();
        } else if (is(SUPER_NIBBLES)) {
            if (group == 0) begin_block();
            for (int half = 0; half < 2; half++, at += LANES) {
                int8_t low[LANES], high[LANES];
                for (int lane = 0; lane < LANES; lane++)
                    low[lane] = at[lane] & 15, high[lane] = at[lane] >> 4;
                scale[half] = super_scale * floats_of(low);
                offset[half] = super_offset * floats_of(high);
            }
            count();
        }
    }

    void prefetch(int groups) const {
        __builtin_prefetch(at + groups * scale_bytes(kind) / (kind >= SUPER ? GROUPS_OF_BLOCK : 1));
    }

private:
    const Scales kind;
    const uint8_t* at;
    Floats super_scale{}, super_offset{};
    int group = 0;  // of its block

    // The only kind that it may be is not looked up.
    DRAFTWOOD_INLINE bool is(Scales one) const {
        constexpr bool is_single = (KINDS & (KINDS - 1)) == 0;
        return (KINDS >> one & 1) && (is_single || kind == one);
    }

    DRAFTWOOD_INLINE void count() { group = (group + 1) % GROUPS_OF_BLOCK; }

    DRAFTWOOD_INLINE void begin_block() {
        super_scale = load((const float16*)at);
        super_offset = -load((const float16*)at + LANES);
        at += 2 * LANES * sizeof(float16);
    }

    // Halves of 2^(exponent - 127); the two smallest are below the normal numbers.
    static Floats powers_of_two(const uint8_t* exponents) {
        typedef uint8_t Bytes __attribute__((vector_size(LANES)));
        Bytes bytes;
        std::memcpy(&bytes, exponents, sizeof bytes);
        const Words wide = __builtin_convertvector(bytes, Words);
        const Words small = (Words{} + 0x00200000u) << wide, usual = (wide - 1) << 23;
        return chosen(below((Ints)wide, Ints{} + 2), (Floats)small, (Floats)usual);
    }
};

// The bytes that codes of up to 4 bits stand for, once in every 128 bits.
inline Ints make_table(const FormatInfo& info) {
    uint8_t bytes[sizeof(Ints)];
    for (int i = 0; i < (int)sizeof bytes; i++)
        bytes[i] = (uint8_t)(has_table(info) ? info.values[i % 16] + 128 : i % 16 + info.addend);
    Ints table;
    std::memcpy(&table, bytes, sizeof table);
    return table;
}

// Those of all formats, made once: a tile's product is too short to make one.
struct Tables {
    Ints of[FORMATS];

    Tables() {
        for (int format = 0; format < FORMATS; format++) of[format] = make_table(info_of(format));
    }
};
extern const Tables TABLES;  // products.cpp

// Each byte becomes the table's entry of that number, below 16.
DRAFTWOOD_INLINE Ints translated(Ints table, Ints codes) {
#if defined(__AVX512BW__)
    return (Ints)_mm512_shuffle_epi8((__m512i)table, (__m512i)codes);
#elif defined(__AVX2__)
    for (int part = 0; part < 2; part++)
        ((__m256i*)&codes)[part] =
            _mm256_shuffle_epi8(((__m256i*)&table)[part], ((__m256i*)&codes)[part]);
    return codes;
#elif defined(__aarch64__)
    for (int part = 0; part < 4; part++)
        ((uint8x16_t*)&codes)[part] =
            vqtbl1q_u8(((uint8x16_t*)&table)[part], ((uint8x16_t*)&codes)[part]);
    return codes;
#else
    uint8_t entries[sizeof table], bytes[sizeof codes];
    std::memcpy(entries, &table, sizeof table), std::memcpy(bytes, &codes, sizeof codes);
    for (uint8_t& byte : bytes) byte = entries[byte];
    std::memcpy(&codes, bytes, sizeof codes);
    return codes;
#endif
}

constexpr int WORDS = GROUP / 4;  // vectors of a group's bytes: 4 inputs of each of 16 outputs

// Codes of a group, words [first, last), from their planes; `plane` hands out one.
template <int LOW, int HIGH, class Vector, class Plane>
DRAFTWOOD_INLINE void unpack_codes(Plane plane, int first, int last, Vector* codes) {
    static_assert((LOW == 2 || LOW == 4 || LOW == 8) && HIGH <= 2);
    constexpr uint32_t mask = 0x01010101u * ((1 << LOW) - 1),
                       high_mask = 0x01010101u * ((1 << HIGH) - 1);
#pragma GCC unroll 8
    for (int i = first; i < last; i++)
        codes[i - first] = LOW == 8 ? plane(i) : plane(i % LOW) >> (i / LOW * LOW) & mask;
    if constexpr (HIGH > 0)
#pragma GCC unroll 8
        for (int i = first; i < last; i++)
            codes[i - first] |= (plane(LOW + i % HIGH) >> (i / HIGH * HIGH) & high_mask) << LOW;
}

// The reverse.
template <int LOW, int HIGH>
inline void pack_codes(const Ints* codes, Ints* planes) {
    constexpr uint32_t mask = 0x01010101u * ((1u << LOW) - 1);
    for (int i = 0; i < LOW + HIGH; i++) planes[i] = Ints{};
    for (int i = 0; i < WORDS; i++)
        planes[i % LOW] |= (Ints)(((Words)codes[i] & mask) << (i / LOW * LOW));
    if constexpr (HIGH > 0)
        for (int i = 0; i < WORDS; i++)
            planes[LOW + i % HIGH] |=
                (Ints)((((Words)codes[i] & ~mask) >> LOW) << (i / HIGH * HIGH));
}

inline void pack_codes(int low, int high, const Ints* codes, Ints* planes) {
    switch (8 * low + high) {
        case 8 * 2 + 0: return pack_codes<2, 0>(codes, planes);
        case 8 * 2 + 1: return pack_codes<2, 1>(codes, planes);
        case 8 * 4 + 0: return pack_codes<4, 0>(codes, planes);
        case 8 * 4 + 1: return pack_codes<4, 1>(codes, planes);
        case 8 * 4 + 2: return pack_codes<4, 2>(codes, planes);
        default: return pack_codes<8, 0>(codes, planes);
    }
}

// Turns the planes of a matrix's groups into the bytes that products read.
template <int LOW, int HIGH>
class Unpacker {
public:
    explicit Unpacker(int32_t format)
        : table(TABLES.of[format]),
          addend((Ints)(Words{} + 0x01010101u * (uint32_t)info_of(format).addend)),
          is_plain(info_of(format).zero_point == 0) {}

    DRAFTWOOD_INLINE void operator()(const Ints* planes, Ints* bytes) const {
        Words codes[WORDS];
        unpack_codes<LOW, HIGH>([=](int i) { return (Words)planes[i]; }, 0, WORDS, codes);
        for (int i = 0; i < WORDS; i++) bytes[i] = (Ints)codes[i];
        if constexpr (LOW == 8) return;
        if (is_plain) return;
        for (int i = 0; i < WORDS; i++)
            bytes[i] = LOW + HIGH <= 4 ? translated(table, bytes[i]) : bytes[i] + addend;
    }

private:
    const Ints table, addend;
    const bool is_plain;
};

}  // namespace draftwood
