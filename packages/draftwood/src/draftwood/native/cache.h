// The cache: blocks of 32 places, each with the keys and values of all layers. A sequence has a
// table of its blocks, in the order of its text; several sequences may share one.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace draftwood {

constexpr int CACHE_BLOCK = 32;

typedef uint8_t* const* Blocks;  // a sequence's table

// Of a block of a model with running states: the tokens of its places, and where its memory lies,
// null for none (recurrences.h).
struct BlockTail {
    float* memory;
    int64_t tokens[CACHE_BLOCK];
};

// Keys, and as many values, of one layer: heads of so many bytes. What the layers before it have of
// both for a place.
struct CacheLayer {
    int64_t heads, row_bytes, bytes_before, heads_before;

    size_t place_bytes() const { return (size_t)heads * row_bytes; }
};

// What a block holds: of each layer numbers [2][32][heads][row_bytes] and, of bytes, behind all of
// them scales [2][heads][32] of each. Layers with running states have no numbers here; where there
// are any, a tail lies behind the others'.
struct CacheShape {
    int64_t layers, heads, row_bytes, has_scales;
    int64_t state_size, row_size, lookback;  // floats of all states, and of a row; rows looked back
    const CacheLayer* each;  // [layers + 1] where they differ, the last one behind all; else null

    CacheLayer layer(int64_t index) const {
        if (each) return each[index];
        return {heads, row_bytes, 2 * index * heads * row_bytes, 2 * index * heads};
    }
    // Of a place in all layers.
    size_t place_bytes() const { return layer(layers).bytes_before; }
    size_t place_heads() const { return layer(layers).heads_before; }
    size_t numbers() const { return CACHE_BLOCK * place_bytes(); }

    size_t tail_at() const {
        return numbers() + (has_scales ? place_heads() * CACHE_BLOCK * sizeof(float) : 0);
    }
    size_t bytes() const { return tail_at() + (row_size ? TAIL_BYTES : 0); }

    // Of its memory: a mark whether the state is known, the state before the block's first place,
    // the rows before it that are looked back at, and those of its places.
    size_t memory_floats() const {
        return MARK_FLOATS + state_size + (lookback + CACHE_BLOCK) * row_size;
    }
    BlockTail& tail(uint8_t* block) const { return *(BlockTail*)(block + tail_at()); }
    float* memory(uint8_t* block) const { return tail(block).memory; }
    static int64_t& knows_state(float* memory) { return *(int64_t*)memory; }
    static float* state(float* memory) { return memory + MARK_FLOATS; }
    // Places below 0 are those before the block's.
    float* row(float* memory, int64_t place) const {
        return memory + MARK_FLOATS + state_size + (lookback + place) * row_size;
    }

    // Where a head's keys or values begin in a block, and their scales.
    size_t at(int index, bool value, int head) const {
        const CacheLayer own = layer(index);
        return CACHE_BLOCK * (own.bytes_before + value * own.place_bytes()) + head * own.row_bytes;
    }
    size_t scales_at(int index, bool value, int head) const {
        const CacheLayer own = layer(index);
        return numbers() +
               (own.heads_before + value * own.heads + head) * CACHE_BLOCK * sizeof(float);
    }

private:
    static constexpr size_t TAIL_BYTES = (sizeof(BlockTail) + 63) / 64 * 64, MARK_FLOATS = 16;
};

// Numbers of places that lie in one block.
template <class Number>
struct Neighbours {
    const Number* first;
    size_t stride;

    const Number* operator()(int64_t i) const { return first + i * stride; }
};

// One head's keys, values or scales in the blocks of a sequence.
template <class Number>
struct Stored {
    Blocks blocks;
    size_t offset, stride;  // bytes to a block's first; numbers from place to place

    const Number* operator()(int64_t place) const {
        return (const Number*)(blocks[(uint64_t)place / CACHE_BLOCK] + offset) +
               (uint64_t)place % CACHE_BLOCK * stride;
    }

    Neighbours<Number> neighbours(int64_t place) const { return {(*this)(place), stride}; }
};

// The same of tokens and what recurrences keep of places; a place is never behind where it goes.
inline void keep_rows(const CacheShape& shape, Blocks blocks, int64_t start, const int64_t* path,
                      int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t to = start + i, from = start + path[i];
        if (to == from) continue;
        uint8_t *there = blocks[to / CACHE_BLOCK], *here = blocks[from / CACHE_BLOCK];
        if (!shape.memory(there) || !shape.memory(here)) continue;
        shape.tail(there).tokens[to % CACHE_BLOCK] = shape.tail(here).tokens[from % CACHE_BLOCK];
        std::memcpy(shape.row(shape.memory(there), to % CACHE_BLOCK),
                    shape.row(shape.memory(here), from % CACHE_BLOCK),
                    shape.row_size * sizeof(float));
    }
}

// Moves what is at places start + path to start, in order.
inline void keep_path(const CacheShape& shape, Blocks blocks, int64_t start, const int64_t* path,
                      int64_t count) {
    if (shape.row_size) keep_rows(shape, blocks, start, path, count);
    int64_t first = 0;  // that has to move
    while (first < count && path[first] == first) first++;
    path += first, count -= first;
    if (!count) return;
    const size_t bytes = shape.place_bytes(), heads = shape.has_scales ? shape.place_heads() : 0;
    static thread_local std::vector<uint8_t> kept;
    static thread_local std::vector<float> scales;
    kept.resize(count * bytes), scales.resize(count * heads);
    for (const bool writes : {false, true})
        for (int64_t i = 0; i < count; i++) {
            const int64_t place = start + (writes ? first + i : path[i]), within = place % CACHE_BLOCK;
            uint8_t* block = blocks[place / CACHE_BLOCK];
            float* scale = (float*)(block + shape.numbers()) + within;
            uint8_t* here = kept.data() + i * bytes;
            for (int64_t tensor = 0; tensor < 2 * shape.layers; tensor++) {
                const size_t width = shape.layer(tensor / 2).place_bytes();
                uint8_t* const there = block + shape.at(tensor / 2, tensor % 2, 0) + within * width;
                std::memcpy(writes ? there : here, writes ? here : there, width);
                here += width;
            }
            for (size_t j = 0; j < heads; j++) {
                float &there = scale[j * CACHE_BLOCK], &kept_scale = scales[i * heads + j];
                (writes ? there : kept_scale) = writes ? kept_scale : there;
            }
        }
}

}  // namespace draftwood
