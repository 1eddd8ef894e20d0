// The table of elementwise operations. Compiled once per instruction set.
//
// An operation is its formula for 16 lanes, a function of operands and then of numbers, and a row of the
// table below. Its name, operands and numbers are those of its declaration in chaski/ml/elementwise.py.

#include <type_traits>
#include <utility>

#include "map.h"
#include "ops.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

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

// The loop of a formula; what it takes is read off its type.
template <auto formula>
struct Loop;

template <class... Arguments, F32x16 (*formula)(Arguments...)>
struct Loop<formula> {
    static constexpr int kOperands = (0 + ... + (std::is_same_v<Arguments, F32x16> ? 1 : 0));
    static constexpr int kParameters = static_cast<int>(sizeof...(Arguments)) - kOperands;
    static_assert(kOperands <= kMaxElementwiseOperands);

    static void apply(const float* const* x, const float* parameters, std::int64_t count, float* y) {
        apply(x, parameters, count, y, std::make_index_sequence<kOperands>{},
              std::make_index_sequence<kParameters>{});
    }

   private:
    template <std::size_t... X, std::size_t... P>
    CHASKI_INLINE static void apply(const float* const* x, const float* parameters, std::int64_t count,
                                    float* y, std::index_sequence<X...>, std::index_sequence<P...>) {
        // Copies, because the compiler has to think that `y` may point at the parameters.
        [[maybe_unused]] const float own[kParameters + 1] = {parameters[P]..., 0.0f};
        map(
            count, y,
            [&](auto... operands) __attribute__((always_inline)) { return formula(operands..., own[P]...); },
            x[X]...);
    }
};

template <auto formula>
constexpr Elementwise row(const char* name) {
    using Kernel = Loop<formula>;
    return {name, Kernel::kOperands, Kernel::kParameters, Kernel::apply};
}

}  // namespace

extern const Elementwise kElementwise[];
const Elementwise kElementwise[] = {
    row<add>("add"),
    row<multiply>("multiply"),
    row<scale>("scale"),
    row<exp>("exp"),
    row<sigmoid>("sigmoid"),
    row<softplus>("softplus"),
    row<relu>("relu"),
    row<silu>("silu"),
    row<gelu>("gelu"),
    row<gelu_tanh>("gelu_tanh"),
    row<quick_gelu>("quick_gelu"),
    row<bounded>("softcap"),
    row<clamp>("clamp"),
    row<swiglu>("swiglu"),
    row<geglu>("geglu"),
    row<clamped_swiglu>("clamped_swiglu"),
    {nullptr, 0, 0, nullptr},
};

}  // namespace chaski::CHASKI_ISA
