// Reads the blocks of GGUF files into the layout of formats.h.
//
// A block holds 32 or 256 inputs of one output: scales, and codes in an order of its own. Here its
// codes are taken apart, and those of 16 outputs are woven together. Formats are those of the GGUF
// specification and of llama.cpp's quantisation types.
#pragma once

#include "packing.h"

namespace draftwood {

// What a block of a K format says, or of one of its kin; simpler formats use the first parts.
struct Block {
    float16 scale, offset;
    int8_t factors[16], offset_factors[8];  // of each 16 or 32 inputs
    uint8_t codes[SUPER_BLOCK];
};

// Grids of the formats that code several inputs at once: indices into FormatInfo::values, and for
// each 7 bits the signs of 8 inputs, a byte each, as the highest bits of their codes.
struct CodeBooks {
    const uint8_t* grid;
    const uint8_t (*signs)[8];
};

inline int bytes_of_block(int32_t format) {
    switch (format) {
        case Q4_0: return 18;
        case Q4_1: return 20;
        case Q5_0: return 22;
        case Q5_1: return 24;
        case Q8_0: return 34;
        case Q2_K: return 84;
        case Q3_K: return 110;
        case Q4_K: return 144;
        case Q5_K: return 176;
        case Q6_K: return 210;
        case IQ4_NL: return 18;
        case IQ4_XS: return 136;
        case MXFP4: return 17;
        case IQ2_XXS: return 66;
        case IQ3_XXS: return 98;
        default: return 0;
    }
}

template <class Number>
inline Number read_number(const uint8_t* from) {
    Number number;
    std::memcpy(&number, from, sizeof number);
    return number;
}

// Low nibbles are the first 16 codes, high ones the others.
inline void read_nibbles(const uint8_t* nibbles, uint8_t* codes) {
    for (int i = 0; i < GROUP / 2; i++)
        codes[i] = nibbles[i] & 15, codes[i + GROUP / 2] = nibbles[i] >> 4;
}

inline void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
    const uint32_t word = read_number<uint32_t>(bits);
    for (int i = 0; i < GROUP; i++) codes[i] |= (uint8_t)((word >> i & 1) << 4);
}

// Eight scales and eight offsets of 6 bits in 12 bytes (Q4_K, Q5_K).
inline void read_six_bits(const uint8_t* bytes, Block& block) {
    for (int i = 0; i < 4; i++) {
        block.factors[i] = bytes[i] & 63, block.offset_factors[i] = bytes[i + 4] & 63;
        block.factors[i + 4] = (bytes[i + 8] & 15) | (bytes[i] >> 6 << 4);
        block.offset_factors[i + 4] = (bytes[i + 8] >> 4) | (bytes[i + 4] >> 6 << 4);
    }
}

inline void read_q2_k(const uint8_t* from, Block& block) {
    std::memcpy(block.factors, from, 16);  // pairs of nibbles, kept as they are
    for (int part = 0; part < 2; part++)
        for (int group = 0; group < 4; group++)
            for (int i = 0; i < GROUP; i++)
                block.codes[(part * 4 + group) * GROUP + i] =
                    from[16 + part * GROUP + i] >> (group * 2) & 3;
    block.scale = read_number<float16>(from + 80), block.offset = read_number<float16>(from + 82);
}

inline void read_q3_k(const uint8_t* from, Block& block) {
    const uint8_t *high = from, *low = from + 32, *packed = from + 96;
    for (int part = 0; part < 2; part++)
        for (int group = 0; group < 4; group++)
            for (int i = 0; i < GROUP; i++)
                block.codes[(part * 4 + group) * GROUP + i] =
                    (low[part * GROUP + i] >> (group * 2) & 3) | (high[i] >> (part * 4 + group) & 1)
                                                                     << 2;
    for (int i = 0; i < 16; i++)
        block.factors[i] = (int8_t)(((packed[i % 8] >> (i / 8 * 4) & 15) |
                                     (packed[8 + i % 4] >> (i / 4 * 2) & 3) << 4) -
                                    32);
    block.scale = read_number<float16>(from + 108);
}

inline void read_q4_k(const uint8_t* from, Block& block) {
    block.scale = read_number<float16>(from), block.offset = read_number<float16>(from + 2);
    read_six_bits(from + 4, block);
    for (int part = 0; part < 4; part++)
        for (int i = 0; i < GROUP; i++) {
            const uint8_t pair = from[16 + part * GROUP + i];
            block.codes[part * 2 * GROUP + i] = pair & 15;
            block.codes[(part * 2 + 1) * GROUP + i] = pair >> 4;
        }
}

inline void read_q5_k(const uint8_t* from, Block& block) {
    block.scale = read_number<float16>(from), block.offset = read_number<float16>(from + 2);
    read_six_bits(from + 4, block);
    const uint8_t *high = from + 16, *low = from + 48;
    for (int part = 0; part < 4; part++)
        for (int i = 0; i < GROUP; i++) {
            const uint8_t pair = low[part * GROUP + i], bits = high[i] >> (part * 2);
            block.codes[part * 2 * GROUP + i] = (pair & 15) | (bits & 1) << 4;
            block.codes[(part * 2 + 1) * GROUP + i] = (pair >> 4) | (bits >> 1 & 1) << 4;
        }
}

inline void read_q6_k(const uint8_t* from, Block& block) {
    const uint8_t *low = from, *high = from + 128;
    for (int part = 0; part < 2; part++)
        for (int group = 0; group < 4; group++)
            for (int i = 0; i < GROUP; i++)
                block.codes[(part * 4 + group) * GROUP + i] =
                    (low[(part * 2 + group % 2) * GROUP + i] >> (group / 2 * 4) & 15) |
                    (high[part * GROUP + i] >> (group * 2) & 3) << 4;
    std::memcpy(block.factors, from + 192, 16);
    block.scale = read_number<float16>(from + 208);
}

inline void read_iq4_xs(const uint8_t* from, Block& block) {
    block.scale = read_number<float16>(from);
    const uint16_t high = read_number<uint16_t>(from + 2);
    for (int i = 0; i < GROUPS_OF_BLOCK; i++) {
        const int low = from[4 + i / 2] >> (i % 2 * 4) & 15;
        block.factors[i] = (int8_t)((low | (high >> (2 * i) & 3) << 4) - 32);
        read_nibbles(from + 8 + i * 16, block.codes + i * GROUP);
    }
}

// Codes of `Word` inputs at once: their sizes, and their signs.
template <class Word>
inline void put_signed(const uint8_t* sizes, const uint8_t* signs, uint8_t* codes) {
    const Word word = read_number<Word>(sizes) | read_number<Word>(signs);
    std::memcpy(codes, &word, sizeof word);
}

inline void read_iq2_xxs(const uint8_t* from, const CodeBooks& books, Block& block) {
    block.scale = read_number<float16>(from);
    for (int group = 0; group < GROUPS_OF_BLOCK; group++) {
        const uint8_t* grids = from + 2 + group * 8;
        const uint32_t word = read_number<uint32_t>(grids + 4);
        block.factors[group] = (int8_t)(2 * (word >> 28) + 1);
        for (int part = 0; part < 4; part++)
            put_signed<uint64_t>(books.grid + grids[part] * 8, books.signs[word >> (part * 7) & 127],
                                 block.codes + group * GROUP + part * 8);
    }
}

inline void read_iq3_xxs(const uint8_t* from, const CodeBooks& books, Block& block) {
    block.scale = read_number<float16>(from);
    const uint8_t *grids = from + 2, *words = from + 66;
    for (int group = 0; group < GROUPS_OF_BLOCK; group++) {
        const uint32_t word = read_number<uint32_t>(words + group * 4);
        block.factors[group] = (int8_t)(2 * (word >> 28) + 1);
        for (int part = 0; part < 8; part++)
            put_signed<uint32_t>(books.grid + grids[group * 8 + part] * 4,
                                 books.signs[word >> (part / 2 * 7) & 127] + part % 2 * 4,
                                 block.codes + group * GROUP + part * 4);
    }
}

// Take a block of 32 or 256 inputs apart.
inline void read_block(int32_t format, const uint8_t* from, const CodeBooks& books, Block& block) {
    block.scale = read_number<float16>(from);
    switch (format) {
        case Q4_0:
        case IQ4_NL: return read_nibbles(from + 2, block.codes);
        case Q4_1:
            block.offset = read_number<float16>(from + 2);
            return read_nibbles(from + 4, block.codes);
        case Q5_0:
            return read_nibbles(from + 6, block.codes), add_fifth_bits(from + 2, block.codes);
        case Q5_1:
            block.offset = read_number<float16>(from + 2);
            return read_nibbles(from + 8, block.codes), add_fifth_bits(from + 4, block.codes);
        case Q8_0:
            for (int i = 0; i < GROUP; i++) block.codes[i] = (uint8_t)(from[2 + i] ^ 128);
            return;
        case MXFP4: block.factors[0] = (int8_t)from[0]; return read_nibbles(from + 1, block.codes);
        case Q2_K: return read_q2_k(from, block);
        case Q3_K: return read_q3_k(from, block);
        case Q4_K: return read_q4_k(from, block);
        case Q5_K: return read_q5_k(from, block);
        case Q6_K: return read_q6_k(from, block);
        case IQ4_XS: return read_iq4_xs(from, block);
        case IQ2_XXS: return read_iq2_xxs(from, books, block);
        case IQ3_XXS: return read_iq3_xxs(from, books, block);
    }
}

// The scales of 16 outputs' blocks, as ScaleReader reads them.
inline void put_scales(Scales kind, const Block* blocks, uint8_t* to) {
    const bool halves = kind == SUPER_OF_HALVES || kind == SUPER_NIBBLES;
    if (kind != EXPONENT)
        for (int lane = 0; lane < LANES; lane++) ((float16*)to)[lane] = blocks[lane].scale;
    if (kind == HALF_OFFSET || kind == SUPER_OFFSET || kind == SUPER_NIBBLES)
        for (int lane = 0; lane < LANES; lane++) ((float16*)to)[LANES + lane] = blocks[lane].offset;
    if (kind == HALF || kind == HALF_OFFSET) return;
    const int parts = kind == EXPONENT ? 1 : halves ? 16 : 8, bytes = scale_bytes(kind);
    const int first = bytes - LANES * (kind == SUPER_OFFSET ? 2 * parts : parts);
    for (int part = 0; part < parts; part++)
        for (int lane = 0; lane < LANES; lane++) {
            to[first + part * LANES + lane] = (uint8_t)blocks[lane].factors[part];
            if (kind == SUPER_OFFSET)
                to[first + (parts + part) * LANES + lane] =
                    (uint8_t)blocks[lane].offset_factors[part];
        }
}

// A matrix and what it is made of.
struct StoredBlocks {
    const uint8_t* rows;   // of blocks
    const int64_t* order;  // the row of each output
    CodeBooks books;
    Matrix* matrix;
};

// Fill a tile of the memory that the matrix points to.
inline void pack_blocks(const StoredBlocks& stored, int tile) {
    Matrix& matrix = *stored.matrix;
    const int width = block_of(matrix.format), bytes = bytes_of_block(matrix.format),
              count = matrix.inputs / width;
    const Scales kind = info_of(matrix.format).scales;
    static thread_local Block blocks[LANES];
    std::memset(blocks, 0, sizeof blocks);  // outputs that are not there stay so
    for (int number = 0; number < count; number++) {
        for (int lane = 0; lane < LANES && tile * LANES + lane < matrix.outputs; lane++)
            read_block(matrix.format,
                       stored.rows + (stored.order[tile * LANES + lane] * count + number) * bytes,
                       stored.books, blocks[lane]);
        put_scales(kind, blocks,
                   (uint8_t*)scales(matrix, tile) + (size_t)number * scale_bytes(kind));
        for (int group = 0, groups = width / GROUP; group < groups; group += 2)
            put_codes(matrix, tile, number * groups + group, std::min(2, groups - group),
                      [&](int lane) { return blocks[lane].codes + group * GROUP; });
    }
}

}  // namespace draftwood
