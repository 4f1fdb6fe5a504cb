// Products of packed matrices with rows, for machines other than the one that packed them.
//
// Arguments: a file of cases and one for results. A case is a Matrix without its pointers, the
// number of rows, the sizes of weights and scales in bytes, then weights, scales and rows. Where
// LIBRARY names one, it multiplies and not this program.
#include <dlfcn.h>

#include <cstdio>

#include "products.h"

using namespace draftwood;

struct Case {
    int32_t format, outputs, inputs, encoding;
    float factor;
    int32_t rows, weight_bytes, scale_bytes;
};

#ifdef LIBRARY
void multiply(const Matrix& matrix, const std::vector<float>& values, int rows, float* results) {
    using Multiply = int32_t (*)(const Matrix*, const float*, int32_t, float*, int32_t);
    static void* const library = dlopen(LIBRARY, RTLD_NOW);
    if (!library) std::fprintf(stderr, "%s\n", dlerror()), std::exit(4);
    ((Multiply)dlsym(library, "draftwood_multiply"))(&matrix, values.data(), rows, results, 1);
}
#else
void multiply(const Matrix& matrix, const std::vector<float>& values, int count, float* results) {
    Rows rows;
    rows.reserve(matrix.encoding, count, matrix.inputs);
    for (int row = 0; row < count; row++)
        for (int input = 0; input < matrix.inputs; input += GROUP)
            rows.encode(row, input, &values[(size_t)row * matrix.inputs + input],
                        std::min(GROUP, matrix.inputs - input));
    products(matrix, rows, count, 0, tiles(matrix), [&](int row, int tile, Floats sums) {
        for (int lane = 0; lane < LANES && tile * LANES + lane < matrix.outputs; lane++)
            results[(size_t)row * matrix.outputs + tile * LANES + lane] = sums[lane];
    });
}
#endif

int main(int count, char** names) {
    FILE *from = count == 3 ? std::fopen(names[1], "rb") : nullptr,
         *to = from ? std::fopen(names[2], "wb") : nullptr;
    if (!to) return 1;
    for (Case read; std::fread(&read, sizeof read, 1, from);) {
        std::vector<Ints> weights(ceil_div(read.weight_bytes, sizeof(Ints)));
        std::vector<Ints> scales(ceil_div(read.scale_bytes, sizeof(Ints)) + 1);
        std::vector<float> values((size_t)read.rows * read.inputs);
        if (!std::fread(weights.data(), read.weight_bytes, 1, from) ||
            (read.scale_bytes && !std::fread(scales.data(), read.scale_bytes, 1, from)) ||
            !std::fread(values.data(), values.size() * sizeof(float), 1, from))
            return 2;
        const Matrix matrix{read.format,    read.outputs,   read.inputs, read.encoding, read.factor,
                            weights.data(), scales.data(), nullptr};
        std::vector<float> results((size_t)read.rows * matrix.outputs);
        multiply(matrix, values, read.rows, results.data());
        std::fwrite(results.data(), sizeof(float), results.size(), to);
    }
    std::puts(byte_instructions() ? byte_instructions() : "plain loops");
    return std::fclose(to) ? 3 : 0;
}
