// What matrix.py calls: matrices are laid out, read and multiplied.
#include <atomic>

#include "blocks.h"
#include "products.h"
#include "workshop.h"

namespace draftwood {

void read_output(const Matrix& matrix, int output, float* weights) {
    const int tile = output / LANES, lane = output % LANES;
    const size_t width = (size_t)groups(matrix) * GROUP;
    if (is_quantised(matrix.format)) {
        TileReader reader(matrix, tile);
        for (int group = 0; group < groups(matrix); group++) {
            Floats floats[GROUP];
            reader.next(floats);
            for (int i = 0; i < GROUP && group * GROUP + i < matrix.inputs; i++)
                weights[group * GROUP + i] = floats[i][lane];
        }
        return;
    }
    for (int input = 0; input < matrix.inputs; input++) {
        const size_t place = ((size_t)tile * width + input) * LANES + lane;
        if (matrix.format == FLOAT32) weights[input] = ((const float*)matrix.weights)[place];
        else if (matrix.format == FLOAT16)
            weights[input] = (float)((const float16*)matrix.weights)[place];
        else
            weights[input] = to_float(
                ((const bfloat16*)matrix.weights)[place_of_pair(matrix, tile, input, lane)]);
    }
}

}  // namespace draftwood

extern "C" {

int32_t draftwood_fits_int4(const void* weights, int32_t are_halves, int32_t outputs,
                            int32_t inputs, int32_t threads) {
    using namespace draftwood;
    if (inputs % GROUP) return false;
    const GivenWeights given{weights, are_halves != 0, outputs, inputs};
    std::atomic<bool> fit{true};
    for_each(outputs, threads, [&](int64_t output) {
        std::vector<float> room;
        if (fit.load(std::memory_order_relaxed) &&
            !fits_int4(given.rows((int)output, 1, room), inputs))
            fit = false;
    });
    return fit;
}

// Returns whether 4 bits hold all weights; false in other formats than theirs.
int32_t draftwood_pack(const void* weights, int32_t are_halves, draftwood::Matrix* matrix,
                       int32_t threads) {
    using namespace draftwood;
    const GivenWeights given{weights, are_halves != 0, matrix->outputs, matrix->inputs};
    set_factor(given, *matrix, threads);
    std::atomic<bool> fit{true};
    for_each(tiles(*matrix), threads, [&](int64_t tile) {
        if (!pack_tile(given, *matrix, (int)tile)) fit = false;
    });
    return fit;
}

// Matrices from a GGUF file's blocks.
void draftwood_pack_blocks(const draftwood::StoredBlocks* stored, int64_t count, int32_t threads) {
    using namespace draftwood;
    for (const StoredBlocks* each = stored; each < stored + count; each++)
        for_each(tiles(*each->matrix), threads,
                 [&](int64_t tile) { pack_blocks(*each, (int)tile); });
}

// What the scales of a matrix in a format of blocks are multiplied with.
float draftwood_block_factor(int32_t format) { return draftwood::info_of(format).factor; }

// Bytes of a matrix's weights and of its scales.
void draftwood_matrix_sizes(const draftwood::Matrix* matrix, int64_t* bytes) {
    using namespace draftwood;
    bytes[0] = (int64_t)tiles(*matrix) * planes_of_tile(*matrix) * sizeof(Ints);
    bytes[1] = (int64_t)tiles(*matrix) * scale_bytes_of_tile(*matrix);
}

// The name of a format as GGUF files have it; null behind the last.
const char* draftwood_format_name(int32_t format) {
    return format < draftwood::FORMATS ? draftwood::info_of(format).name : nullptr;
}

// What products of bytes, or of floats, run on; null for plain loops.
const char* draftwood_instructions(int32_t of_bytes) {
    return of_bytes ? draftwood::byte_instructions() : draftwood::float_instructions();
}

// The bytes of a block in a GGUF file, 0 for floats.
int32_t draftwood_block_bytes(int32_t format) { return draftwood::bytes_of_block(format); }

// Weights [count inputs] of some outputs.
void draftwood_read_outputs(const draftwood::Matrix* matrix, const int64_t* outputs, int64_t count,
                            float* weights, int32_t threads) {
    using namespace draftwood;
    for_each(count, threads, [&](int64_t i) {
        read_output(*matrix, (int)outputs[i], weights + (size_t)i * matrix->inputs);
    });
}

// results [rows outputs] of values [rows inputs]
void draftwood_multiply(const draftwood::Matrix* matrix, const float* values, int32_t rows,
                        float* results) {
    using namespace draftwood;
    Rows encoded;
    encoded.reserve(matrix->encoding, rows, matrix->inputs);
    for (int row = 0; row < rows; row++)
        for (int from = 0; from < matrix->inputs; from += GROUP)
            encoded.encode(row, from, values + (size_t)row * matrix->inputs + from,
                           std::min(GROUP, matrix->inputs - from));
    products(*matrix, encoded, rows, 0, tiles(*matrix), [&](int row, int tile, Floats sums) {
        for (int lane = 0; lane < LANES && tile * LANES + lane < matrix->outputs; lane++)
            results[(size_t)row * matrix->outputs + tile * LANES + lane] = sums[lane];
    });
}

// Whether the unit for small matrices is there (amx.h); and whether products of so many rows with a
// matrix take it.
int32_t draftwood_has_tiles() { return draftwood::has_unit(); }
int32_t draftwood_takes_tiles(const draftwood::Matrix* matrix, int32_t rows) {
    return draftwood::takes_unit(*matrix, rows);
}

// For tests: see forced_unit.
void draftwood_force_tiles(int32_t forced) { draftwood::forced_unit = forced; }
}
