// What is done to single numbers: activations of networks, and bounds of scores and logits.
#pragma once

#include "vectors.h"

namespace draftwood {

enum Activation : int32_t { SILU = 0, GELU_TANH = 1, RELU_SQUARED = 2 };

// 2 ulp, and not a number where x is none.
inline Floats hyperbolic_tangent(Floats x) {
    Floats size = absolute(x), square = x * x;
    // near 0, where the quotient below would cancel
    Floats power = all(-5.70498872745e-3f);
    power = fma(power, square, all(2.06390887954e-2f));
    power = fma(power, square, all(-5.37397155531e-2f));
    power = fma(power, square, all(1.33314422036e-1f));
    power = fma(power, square, all(-3.33332819422e-1f));
    Floats near = fma(power * square, x, x);
    Floats small = exponential(-2.0f * size);
    Floats far = (1.0f - small) / (1.0f + small);
    far = (Floats)((Words)far | ((Words)x & 0x80000000u));
    far = chosen(are_numbers(x), far, x);
    return chosen(below(size, all(0.625f)), near, far);
}

// Values that stay within the cap; 0 is no cap.
inline Floats capped(Floats values, float cap) {
    return cap == 0 ? values : hyperbolic_tangent(values / all(cap)) * all(cap);
}

inline Floats silu(Floats x) {
    // e^-|x|; for negative x its inverse is wanted
    Floats small = exponential(-absolute(x));
    return x / (1.0f + chosen(below(x, Floats{}), 1.0f / small, small));
}

// x times the normal distribution's probability below x, nearly (Hendrycks and Gimpel 2016,
// arXiv:1606.08415).
inline Floats gelu_tanh(Floats x) {
    Floats inner = fma(x * x * x, all(0.044715f), x) * 0.7978845608f;
    return x * 0.5f * (1.0f + hyperbolic_tangent(inner));
}

// So et al. 2021, arXiv:2109.08668; not a number where x is none.
inline Floats relu_squared(Floats x) { return chosen(below(x, Floats{}), Floats{}, x * x); }

// How a network gates: what is gated, plus a shift, times an activation of its gate, of which only
// the inner part is steeper; both are bounded first, gates only from above. With a slope, a limit
// and a shift it is GPT-OSS's (OpenAI 2025, arXiv:2508.10925).
struct Gating {
    int32_t activation;
    float slope, limit, shift;  // limit 0 for none

    Floats gate(Floats values) const {
        if (limit != 0) values = chosen(below(all(limit), values), all(limit), values);
        if (activation == GELU_TANH) return gelu_tanh(values);
        if (activation == RELU_SQUARED) return relu_squared(values);
        return slope == 1 ? silu(values) : silu(values * all(slope)) / all(slope);
    }

    Floats gated(Floats values) const {
        if (limit != 0) {
            values = chosen(below(all(limit), values), all(limit), values);
            values = chosen(below(values, all(-limit)), all(-limit), values);
        }
        return values + all(shift);
    }
};

}  // namespace draftwood
