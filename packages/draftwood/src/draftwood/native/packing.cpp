// What matrix.py calls: matrices are laid out, read and multiplied.
#include <atomic>

#include "blocks.h"
#include "lack_of_memory.h"
#include "products.h"
#include "workshop.h"

namespace draftwood {

namespace {

// An output that is read, and where its weights go.
struct WantedOutput {
    int output;
    float* weights;
};

// Outputs of one tile, whose groups are decoded once for all of them.
void read_outputs_of_tile(const Matrix& matrix, const WantedOutput* first,
                          const WantedOutput* last) {
    const int tile = first->output / LANES;
    if (is_quantised(matrix.format)) {
        TileReader reader(matrix, tile);
        for (int group = 0; group < groups(matrix); group++) {
            Floats floats[GROUP];
            reader.next(floats);
            const int begin = group * GROUP, count = std::min(GROUP, matrix.inputs - begin);
            for (const WantedOutput* each = first; each < last; each++)
                for (int i = 0; i < count; i++)
                    each->weights[begin + i] = floats[i][each->output % LANES];
        }
        return;
    }
    const size_t width = (size_t)groups(matrix) * GROUP;
    for (const WantedOutput* each = first; each < last; each++) {
        const int lane = each->output % LANES;
        for (int input = 0; input < matrix.inputs; input++) {
            const size_t place = ((size_t)tile * width + input) * LANES + lane;
            float& weight = each->weights[input];
            if (matrix.format == FLOAT32) weight = ((const float*)matrix.weights)[place];
            else if (matrix.format == FLOAT16)
                weight = (float)((const float16*)matrix.weights)[place];
            else
                weight = to_float(
                    ((const bfloat16*)matrix.weights)[place_of_pair(matrix, tile, input, lane)]);
        }
    }
}

}  // namespace

void read_output(const Matrix& matrix, int output, float* weights) {
    const WantedOutput wanted{output, weights};
    read_outputs_of_tile(matrix, &wanted, &wanted + 1);
}

template <class Number>
static void read_floats(const StoredBlocks& stored, int64_t row, float* weights) {
    const int width = stored.matrix->inputs;
    const Number* const from = (const Number*)stored.rows + row * width;
    for (int i = 0; i < width; i++) {
        if constexpr (std::is_same_v<Number, bfloat16>) weights[i] = to_float(from[i]);
        else weights[i] = (float)from[i];
    }
}

// Blocks are laid out alone, in memory of the calling thread.
void read_stored(const StoredBlocks& stored, int64_t row, float* weights) {
    switch (stored.matrix->format) {
        case FLOAT32: return read_floats<float>(stored, row, weights);
        case FLOAT16: return read_floats<float16>(stored, row, weights);
        case BFLOAT16: return read_floats<bfloat16>(stored, row, weights);
    }
    static thread_local std::vector<Ints> codes;
    static thread_local std::vector<Floats> scales;
    Matrix alone = *stored.matrix;
    codes.resize(planes_of_tile(alone));
    scales.resize(scale_bytes_of_tile(alone) / sizeof(Floats) + 1);
    alone.weights = codes.data(), alone.scales = scales.data();
    pack_blocks({stored.rows, &row, stored.books, &alone}, 0);
    read_output(alone, 0, weights);
}

void read_outputs(const Matrix& matrix, const int64_t* outputs, int64_t count, float* weights,
                  int threads) {
    std::vector<WantedOutput> wanted(count);
    for (int64_t i = 0; i < count; i++)
        wanted[i] = {(int)outputs[i], weights + (size_t)i * matrix.inputs};
    std::sort(wanted.begin(), wanted.end(), [](const WantedOutput& a, const WantedOutput& b) {
        return a.output < b.output;
    });
    std::vector<int64_t> begins;  // of those of a tile
    for (int64_t i = 0; i < count; i++)
        if (i == 0 || wanted[i].output / LANES != wanted[i - 1].output / LANES)
            begins.push_back(i);
    begins.push_back(count);
    for_each((int64_t)begins.size() - 1, threads, [&](int64_t i) {
        read_outputs_of_tile(matrix, &wanted[begins[i]], wanted.data() + begins[i + 1]);
    });
}

namespace {

// Returns whether 4 bits hold all weights; false in other formats than theirs.
bool pack(const GivenWeights& given, Matrix& matrix, int threads) {
    set_factor(given, matrix, threads);
    std::atomic<bool> fit{true};
    for_each(tiles(matrix), threads, [&](int64_t tile) {
        if (!pack_tile(given, matrix, (int)tile)) fit = false;
    });
    return fit;
}

constexpr int PIECES_PER_THREAD = 4;  // of tiles, so that many rows share what is unpacked

void multiply(const Matrix& matrix, const float* values, int rows, float* results, int threads) {
    Rows encoded;
    encoded.reserve(matrix.encoding, rows, matrix.inputs);
    for_each(ceil_div(rows, MOST_ROWS), threads, [&](int64_t block) {
        const int first = (int)block * MOST_ROWS, count = std::min(MOST_ROWS, rows - first);
        for (int from = 0; from < matrix.inputs; from += GROUP) {
            const float* places[MOST_ROWS];
            for (int i = 0; i < count; i++)
                places[i] = values + (size_t)(first + i) * matrix.inputs + from;
            encoded.encode_block((int)block, count, from, places,
                                 std::min(GROUP, matrix.inputs - from));
        }
    });
    const int all = tiles(matrix), most = threads == 1 ? 1 : PIECES_PER_THREAD * threads;
    const int64_t pieces = std::min(all, most);
    for_each(pieces, threads, [&](int64_t piece) {
        const int first = (int)(all * piece / pieces), last = (int)(all * (piece + 1) / pieces);
        products(matrix, encoded, rows, first, last, [&](int row, int tile, Floats sums) {
            const int lanes = std::min(LANES, matrix.outputs - tile * LANES);
            std::memcpy(results + (size_t)row * matrix.outputs + tile * LANES, &sums,
                        lanes * sizeof(float));
        });
    });
}

}  // namespace

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

// Both return whether 4 bits hold all weights; false in other formats than theirs.
int32_t draftwood_pack(const void* weights, int32_t are_halves, draftwood::Matrix* matrix,
                       int32_t threads) {
    return draftwood::pack({weights, are_halves != 0, matrix->outputs, matrix->inputs}, *matrix,
                           threads);
}

int32_t draftwood_pack_outputs(const draftwood::Matrix* from, const int64_t* chosen,
                               draftwood::Matrix* matrix, int32_t threads) {
    return draftwood::pack({nullptr, false, matrix->outputs, matrix->inputs, from, chosen},
                           *matrix, threads);
}

// Matrices from a GGUF file's blocks. The threads meet once, behind the last of all tiles.
void draftwood_pack_blocks(const draftwood::StoredBlocks* stored, int64_t count, int32_t threads) {
    using namespace draftwood;
    std::vector<int64_t> ends(count);
    for (int64_t i = 0, tiles_before = 0; i < count; i++)
        ends[i] = tiles_before += tiles(*stored[i].matrix);
    for_each(count ? ends.back() : 0, threads, [&](int64_t tile) {
        const size_t i = std::upper_bound(ends.begin(), ends.end(), tile) - ends.begin();
        pack_blocks(stored[i], (int)(tile - (i ? ends[i - 1] : 0)));
    });
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
    draftwood::read_outputs(*matrix, outputs, count, weights, threads);
}

// results [rows outputs] of values [rows inputs]
int32_t draftwood_multiply(const draftwood::Matrix* matrix, const float* values, int32_t rows,
                           float* results, int32_t threads) {
    return draftwood::guarded([&] {
        return draftwood::multiply(*matrix, values, rows, results, threads), 0;
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
