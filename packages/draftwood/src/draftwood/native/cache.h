// The cache: blocks of 32 places, each with the keys and values of all layers. A sequence has a
// table of its blocks, in the order of its text; several sequences may share one.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace draftwood {

constexpr int CACHE_BLOCK = 32;

typedef uint8_t* const* Blocks;  // a sequence's table

// What a block holds: numbers [2 * layers][32][heads][row_bytes] and, of bytes, behind them scales
// [2 * layers][heads][32].
struct CacheShape {
    int64_t layers, heads, row_bytes, has_scales;

    size_t place_bytes() const { return (size_t)heads * row_bytes; }
    size_t numbers() const { return 2 * layers * CACHE_BLOCK * place_bytes(); }

    size_t bytes() const {
        return numbers() + (has_scales ? 2 * layers * heads * CACHE_BLOCK * sizeof(float) : 0);
    }

    // Where a head's keys or values begin in a block, and their scales.
    size_t at(int layer, bool value, int head) const {
        return (2 * layer + value) * CACHE_BLOCK * place_bytes() + (size_t)head * row_bytes;
    }
    size_t scales_at(int layer, bool value, int head) const {
        return numbers() + ((2 * layer + value) * heads + head) * CACHE_BLOCK * sizeof(float);
    }
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

// Moves what is at places start + path to start, in order.
inline void keep_path(const CacheShape& shape, Blocks blocks, int64_t start, const int64_t* path,
                      int64_t count) {
    int64_t first = 0;  // that has to move
    while (first < count && path[first] == first) first++;
    path += first, count -= first;
    if (!count) return;
    const size_t width = shape.place_bytes(), tensors = 2 * shape.layers;
    static thread_local std::vector<uint8_t> kept;
    static thread_local std::vector<float> scales;
    kept.resize(tensors * count * width), scales.resize(tensors * count * shape.heads);
    for (const bool writes : {false, true})
        for (int64_t i = 0; i < count; i++) {
            const int64_t place = start + (writes ? first + i : path[i]), within = place % CACHE_BLOCK;
            uint8_t* block = blocks[place / CACHE_BLOCK];
            float* scale = (float*)(block + shape.numbers()) + within;
            for (size_t tensor = 0; tensor < tensors; tensor++) {
                uint8_t *there = block + (tensor * CACHE_BLOCK + within) * width,
                        *here = &kept[(i * tensors + tensor) * width];
                std::memcpy(writes ? there : here, writes ? here : there, width);
            }
            for (size_t j = 0; shape.has_scales && j < tensors * shape.heads; j++) {
                float &there = scale[j * CACHE_BLOCK], &here = scales[i * tensors * shape.heads + j];
                (writes ? there : here) = writes ? here : there;
            }
        }
}

}  // namespace draftwood
