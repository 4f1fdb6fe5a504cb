// Exponential noise that belongs to a place of a text and a token: the same whenever it is asked
// for.
#pragma once

#include "rows.h"

namespace draftwood {

// Two words that stand for a place of a text; every place has its own.
struct PlaceKey {
    uint32_t first, second;
};

// A permutation of 64-bit words in which every bit of the result depends on every bit of the
// argument: SplitMix64's.
inline uint64_t mixed_up(uint64_t word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
}

// Of a request's place number `place`, counted from 0; see Rng.
inline PlaceKey place_key(uint64_t request, uint64_t place) {
    const uint64_t word = mixed_up(request + (place + 1) * 0x9e3779b97f4a7c15u);
    return {(uint32_t)word, (uint32_t)(word >> 32)};
}

// The same kind of permutation for 32-bit words.
inline Words scrambled(Words x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// Natural logarithm of positive numbers; 2 ulp.
inline Floats logarithm(Floats x) {
    Words bits = (Words)x;
    Ints exponent = (Ints)(bits >> 23) - 126;
    Floats m = (Floats)((bits & 0x007fffffu) | 0x3f000000u);  // 0.5 to 1
    Ints small = m < 0.70710678f;  // -1 where true
    m = small ? m + m - 1.0f : m - 1.0f;
    Floats e = __builtin_convertvector(exponent + small, Floats), square = m * m;
    Floats y = all(7.0376836292e-2f);
    for (float c : {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                    -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f})
        y = fma(y, m, all(c));
    y = y * m * square;
    y = fma(e, all(-2.12194440e-4f), y) - 0.5f * square;
    return fma(e, all(0.693359375f), m + y);
}

// Uniform numbers of 16 tokens, to 32 bits, and the words that decide about the rest.
inline Floats uniforms(Words tokens, PlaceKey key, Words& words) {
    words = scrambled(tokens + key.first);
    return __builtin_convertvector(scrambled(words ^ key.second), Floats) * 0x1p-32f;
}

// Standard exponential numbers of 16 tokens, to float precision where they are small, which is
// where they decide.
inline Floats exponential_noise(Words tokens, PlaceKey key) {
    Words words;
    Floats high = uniforms(tokens, key, words);
    Floats low = __builtin_convertvector(scrambled(words ^ ~key.second), Floats);
    Floats uniform = high + fma(low, all(0x1p-64f), all(0x1p-66f));
    // log1p by Kahan's formula
    Floats rest = larger(1.0f - uniform, all(0x1p-24f)), taken = 1.0f - rest;
    return taken > 0.0f ? -logarithm(rest) * (uniform / taken) : uniform;
}

// The token that arrives first when each comes at its weight as rate, or -1; one of weight 0 never
// does. `weigh` makes weights of 16 numbers; those behind the row are `beyond`.
template <typename Weigh>
int64_t gumbel_argmax(const float* row, int64_t size, PlaceKey key, float beyond, Weigh weigh) {
    Words token, unused;
    for (int lane = 0; lane < LANES; lane++) token[lane] = lane;
    float best = 0;
    int64_t who = -1;
    for (int64_t place = 0; place < size; place += LANES, token += LANES) {
        Floats numbers = all(beyond);
        if (place + LANES <= size) numbers = load(row + place);
        else std::copy(row + place, row + size, (float*)&numbers);
        Floats weight = weigh(numbers);
        // An arrival is never before its uniform number, so most tokens are behind without any
        // logarithm.
        if (!any_above(weight - uniforms(token, key, unused) * (best * 0.9999f), 0.0f)) continue;
        Floats race_score = weight / exponential_noise(token, key);
        for (int lane = 0; lane < LANES; lane++)
            if (race_score[lane] > best) best = race_score[lane], who = place + lane;
    }
    return who;
}

inline int64_t gumbel_argmax(const float* weights, int64_t size, PlaceKey key) {
    return gumbel_argmax(weights, size, key, 0.0f, [](Floats weights) { return weights; });
}

// The same for logits, whose weights are e^(value / temperature); the largest of them at
// temperature 0. It is -1 where that is infinite or no number.
inline int64_t gumbel_argmax_of_logits(const float* logits, int64_t size, float temperature,
                                       PlaceKey key) {
    if (temperature == 0) {
        int64_t place;
        topk_of(logits, size, 1, &place);
        return std::isfinite(logits[place]) ? place : -1;
    }
    const float most = largest_value(logits, size), inverse = 1 / temperature;
    if (!std::isfinite(most)) return -1;
    return gumbel_argmax(logits, size, key, -INFINITY,
                           [&](Floats logits) { return scaled_exp(logits, most, inverse); });
}

}  // namespace draftwood
