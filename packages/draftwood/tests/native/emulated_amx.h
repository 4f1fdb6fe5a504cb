// AMX in emulation, to be included before everything else on a machine that has none: its
// intrinsics by Intel's definition, and a system that lets them be used.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_INT8__ 1

// Of each row of a product, for negative controls.
extern "C" {
inline int32_t emulated_lost_bytes = 0;
}

#define syscall(number, ...) ((number) == SYS_arch_prctl ? 0L : (syscall)(number, __VA_ARGS__))

namespace emulated {

struct State {
    uint8_t palette, start, unused[14];
    uint16_t row_bytes[16];
    uint8_t row_counts[16];
    uint8_t tiles[8][16][64];
};

inline thread_local State state;

// An instruction that real machines would refuse.
inline void demand(bool condition) {
    if (!condition) std::abort();
}

inline void load_config(const void* config) {
    std::memset(&state, 0, sizeof state);
    std::memcpy(&state, config, 64);
    demand(state.palette == 1 && state.start == 0);
    for (uint8_t byte : state.unused) demand(byte == 0);
    for (int tile = 0; tile < 16; tile++) {
        demand(tile < 8 || (state.row_bytes[tile] == 0 && state.row_counts[tile] == 0));
        demand(state.row_bytes[tile] <= 64 && state.row_counts[tile] <= 16);
        demand((state.row_bytes[tile] == 0) == (state.row_counts[tile] == 0));
    }
}

inline void release() { std::memset(&state, 0, sizeof state); }

inline void zero(int tile) {
    demand(state.palette == 1 && state.row_counts[tile]);
    std::memset(state.tiles[tile], 0, sizeof state.tiles[tile]);
}

inline void load(int tile, const void* from, size_t stride) {
    zero(tile);
    for (int row = 0; row < state.row_counts[tile]; row++)
        std::memcpy(state.tiles[tile][row], (const uint8_t*)from + row * stride,
                    state.row_bytes[tile]);
}

inline void store(int tile, void* to, size_t stride) {
    demand(state.palette == 1 && state.row_counts[tile]);
    for (int row = 0; row < state.row_counts[tile]; row++)
        std::memcpy((uint8_t*)to + row * stride, state.tiles[tile][row], state.row_bytes[tile]);
}

inline void multiply_signed(int sums, int a, int b) {
    demand(state.palette == 1 && sums != a && sums != b && a != b);
    demand(state.row_counts[sums] == state.row_counts[a]);
    demand(state.row_bytes[sums] == state.row_bytes[b]);
    demand(state.row_bytes[a] == 4 * state.row_counts[b]);
    for (int row = 0; row < state.row_counts[sums]; row++)
        for (int column = 0; column < state.row_bytes[sums] / 4; column++) {
            int32_t sum;
            std::memcpy(&sum, &state.tiles[sums][row][4 * column], 4);
            for (int i = emulated_lost_bytes; i < state.row_bytes[a]; i++)
                sum += (int8_t)state.tiles[a][row][i] *
                       (int8_t)state.tiles[b][i / 4][4 * column + i % 4];
            std::memcpy(&state.tiles[sums][row][4 * column], &sum, 4);
        }
}

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#define _tile_loadconfig(config) emulated::load_config(config)
#define _tile_release() emulated::release()
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::store(tile, to, stride)
#define _tile_dpbssd(sums, a, b) emulated::multiply_signed(sums, a, b)
