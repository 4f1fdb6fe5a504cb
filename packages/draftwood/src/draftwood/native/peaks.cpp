// What the machine gives at most: bytes that are read, and products of bytes.
#include <atomic>
#include <cstring>

#include "clock.h"
#include "dots.h"
#include "workshop.h"

namespace {

constexpr int64_t CHUNK = 1 << 20;  // bytes that a thread reads at a time
constexpr int SUMS = 12, ROUNDS = 50000, SHARES = 16;

std::atomic<int64_t> sink;  // what is measured leaves a result, or it would be left out

template <class Number>
void leave(Number number) {
    int64_t first;
    std::memcpy(&first, &number, sizeof first);
    sink.fetch_xor(first, std::memory_order_relaxed);
}

}  // namespace

extern "C" {

// Bytes per second, of whole chunks
double draftwood_read_peak(const char* data, int64_t bytes, int32_t threads) {
    using draftwood::Words;
    const int64_t chunks = bytes / CHUNK;
    draftwood::Lap lap;
    draftwood::for_each(chunks, threads, [&](int64_t chunk) {
        const char* own = data + chunk * CHUNK;
        constexpr int LANES = 4, PLACES = CHUNK / sizeof(Words);
        Words found[LANES] = {};
        for (int place = 0; place < PLACES; place += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                Words read;  // from any address
                std::memcpy(&read, own + (place + lane) * sizeof read, sizeof read);
                found[lane] ^= read;
            }
        leave(found[0] ^ found[1] ^ found[2] ^ found[3]);
    });
    return (double)(chunks * CHUNK) / lap();
}

// Multiplications and additions per second; 0 where bytes have no instruction of their own
double draftwood_product_peak(int32_t threads) {
#if defined(DRAFTWOOD_BYTE_DOTS)
    using namespace draftwood;
    const int64_t shares = (int64_t)threads * SHARES;
    Lap lap;
    for_each(shares, threads, [&](int64_t share) {
        const Register weights = all_words(0x01020304u + (uint32_t)share);
        const Register inputs = all_words(0x7f010203u);
        Register sums[SUMS];
        for (Register& each : sums) each = all_words((uint32_t)share);
        for (int round = 0; round < ROUNDS; round++)
            for (Register& each : sums) each = dot_part(each, weights, inputs, false);
        for (const Register& each : sums) leave(each);
    });
    return (double)shares * ROUNDS * SUMS * sizeof(Register) / lap();
#else
    (void)threads;
    return 0.0;
#endif
}

}  // extern "C"
