// Products of small matrices of bytes: by the unit that Intel calls AMX where CPU and system offer
// it, and in plain C++ everywhere, so that whoever builds on them runs on every machine.
//
// A product has up to 16 rows of signed bytes and the bytes of 16 outputs, four inputs of an output
// side by side, which is how the Unpacker of formats.h leaves them. Its sums are whole numbers, so
// they are exact in any order.
//
// The unit's products of bfloat16 numbers are not used: they add up even and odd inputs apart and
// round otherwise than dot_halves, so a row among many would not give the bits that it gives alone.
#pragma once

#include <algorithm>
#include <atomic>

#include "formats.h"

#if defined(__AMX_INT8__) && defined(__AMX_TILE__) && defined(__linux__)
#define DRAFTWOOD_AMX
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace draftwood {

constexpr int UNIT_ROWS = 16;  // that a product takes at most
// From so many rows on the unit is used, where the halves of a group have scales of their own and
// where they do not. Measured on two cores of a Sapphire Rapids with five models: its products are
// stored and loaded again before they are scaled, so that with few rows vectors were up to a third
// faster.
constexpr int LEAST_ROWS_OF_HALVES = 16, LEAST_ROWS_OF_GROUPS = 48;

// Whether the system lets this process use the unit; asked once, for all threads.
inline bool has_unit() {
#if defined(DRAFTWOOD_AMX)
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // of Linux
    static const bool granted = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return granted;
#else
    return false;
#endif
}

// For tests: 1 takes the way of the unit for all rows, if need be in plain C++, 0 for none; -1
// decides by the machine and the number of rows.
inline std::atomic<int32_t> forced_unit{-1};

// Whether so many rows are multiplied by the unit.
inline bool takes_unit(int rows, bool halved) {
    const int32_t forced = forced_unit.load(std::memory_order_relaxed);
    const int least = halved ? LEAST_ROWS_OF_HALVES : LEAST_ROWS_OF_GROUPS;
    return forced < 0 ? has_unit() && rows >= least : forced == 1;
}

// The unit as one thread uses it, from here to the end of its scope.
class Unit {
public:
    // For products of so many rows with so many inputs at a time: a multiple of 4.
    Unit(int rows, int inputs) : rows(std::min(rows, UNIT_ROWS)), inputs(inputs) {
#if defined(DRAFTWOOD_AMX)
        if (!in_silicon) return;
        alignas(64) Shapes shapes{};
        shapes.palette = 1;
        for (int side = 0; side < 2; side++) {
            shapes.set(side, this->rows, sizeof(Ints));      // products
            shapes.set(2 + side, this->rows, inputs);        // rows
            shapes.set(4 + side, inputs / 4, sizeof(Ints));  // weights
        }
        written(&shapes);
        _tile_loadconfig(&shapes);
#endif
    }

    ~Unit() {
#if defined(DRAFTWOOD_AMX)
        if (in_silicon) _tile_release();
#endif
    }

    Unit(const Unit&) = delete;

    // Products [rows] of rows [rows][GROUP], of which `inputs` are read, with weights [inputs / 4].
    // All bytes are signed. Products that follow each other take the two sides in turn, so that one
    // does not wait for the other.
    void multiply(int side, const int8_t* values, const Ints* weights, Ints* products) const {
#if defined(DRAFTWOOD_AMX)
        if (in_silicon) {
            written(weights);
            if (side == 0) {
                _tile_zero(0);
                _tile_loadd(2, values, GROUP);
                _tile_loadd(4, weights, sizeof(Ints));
                _tile_dpbssd(0, 2, 4);
                _tile_stored(0, products, sizeof(Ints));
            } else {
                _tile_zero(1);
                _tile_loadd(3, values, GROUP);
                _tile_loadd(5, weights, sizeof(Ints));
                _tile_dpbssd(1, 3, 5);
                _tile_stored(1, products, sizeof(Ints));
            }
            return;
        }
#endif
        (void)side;
        multiply_plainly(values, weights, products);
    }

private:
    const int rows, inputs;

    [[gnu::noinline]] void multiply_plainly(const int8_t* values, const Ints* weights,
                                            Ints* products) const {
        std::fill(products, products + rows, Ints{});
        for (int input = 0; input < inputs; input++) {
            const Ints weight = (Ints)((Words)weights[input / 4] << (24 - input % 4 * 8)) >> 24;
            for (int row = 0; row < rows; row++)
                products[row] += weight * (int32_t)values[row * GROUP + input];
        }
    }

#if defined(DRAFTWOOD_AMX)
    const bool in_silicon = has_unit();

    struct Shapes {
        uint8_t palette, start, unused[14];
        uint16_t row_bytes[16];
        uint8_t row_counts[16];

        void set(int number, int count, size_t bytes) {
            row_counts[number] = (uint8_t)count, row_bytes[number] = (uint16_t)bytes;
        }
    };
    static_assert(sizeof(Shapes) == 64);

    // Compilers do not know how much of the memory at an address the unit's instructions read, so
    // what is to be there could be stored too late.
    static void written(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }
#endif
};

}  // namespace draftwood
