// The formulas of elementwise operations for 16 lanes on every kind of processor.
//
// A formula is a function of operands and then of numbers. Its name, operands and numbers are those of its
// declaration in chaski/ml/elementwise.py.
#pragma once

#include "vector_math.h"

namespace chaski::CHASKI_ISA {

CHASKI_INLINE F32x16 add(F32x16 a, F32x16 b) { return a + b; }
CHASKI_INLINE F32x16 multiply(F32x16 a, F32x16 b) { return a * b; }
CHASKI_INLINE F32x16 scale(F32x16 x, float factor) { return x * splat(factor); }

CHASKI_INLINE F32x16 absolute(F32x16 x) { return max(x, -x); }
CHASKI_INLINE F32x16 relu(F32x16 x) { return max(splat(0.0f), x); }

CHASKI_INLINE F32x16 sigmoid(F32x16 x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); }
CHASKI_INLINE F32x16 silu(F32x16 x) { return x / (splat(1.0f) + exp(-x)); }
CHASKI_INLINE F32x16 softplus(F32x16 x) { return relu(x) + log1p(exp(-absolute(x))); }

// Φ(x) = erfc(-x / sqrt 2) / 2, and for t >= 0 erfc(t) = p(1 / (1 + 0.3275911 t)) e^(-t²) with a polynomial p
// (Abramowitz and Stegun 7.1.26), to about 1e-7.
CHASKI_INLINE F32x16 gelu(F32x16 x) {
    const F32x16 t = absolute(x) * splat(0.70710678f);
    const F32x16 k = splat(1.0f) / fma(splat(0.3275911f), t, splat(1.0f));
    F32x16 p = splat(1.061405429f);
    p = fma(p, k, splat(-1.453152027f));
    p = fma(p, k, splat(1.421413741f));
    p = fma(p, k, splat(-0.284496736f));
    p = fma(p, k, splat(0.254829592f));
    const F32x16 tail = splat(0.5f) * p * k * exp(-(t * t));  // 1 - Φ(|x|)
    return max(x, splat(0.0f)) - absolute(x) * tail;
}

// 0.5 x (1 + tanh(t)) is x · sigmoid(2 t).
CHASKI_INLINE F32x16 gelu_tanh(F32x16 x) {
    constexpr float kTwice = 1.5957691216f;  // 2 sqrt(2 / pi)
    return x * sigmoid(splat(kTwice) * fma(splat(0.044715f) * x * x, x, x));
}

CHASKI_INLINE F32x16 quick_gelu(F32x16 x) { return x * sigmoid(splat(1.702f) * x); }

CHASKI_INLINE F32x16 swiglu(F32x16 gate, F32x16 up) { return silu(gate) * up; }
CHASKI_INLINE F32x16 geglu(F32x16 gate, F32x16 up) { return gelu_tanh(gate) * up; }

CHASKI_INLINE F32x16 clamped_swiglu(F32x16 gate, F32x16 up, float alpha, float limit) {
    gate = min(splat(limit), gate);
    up = min(splat(limit), max(splat(-limit), up));
    return gate * sigmoid(splat(alpha) * gate) * (up + splat(1.0f));
}

CHASKI_INLINE F32x16 clamp(F32x16 x, float low, float high) { return min(splat(high), max(splat(low), x)); }

CHASKI_INLINE F32x16 softcap(F32x16 x, float cap) { return bounded(x, cap); }

// Calls f(formula) for each formula.
#define CHASKI_FORMULAS(f)                                                                         \
    f(add) f(multiply) f(scale) f(exp) f(sigmoid) f(softplus) f(relu) f(silu) f(gelu) f(gelu_tanh) \
        f(quick_gelu) f(softcap) f(clamp) f(swiglu) f(geglu) f(clamped_swiglu)

}  // namespace chaski::CHASKI_ISA
