// Elementwise operations: the formulas of the native core (formulas.h), a thread for each element.
#include "formulas.h"
#include "kernel.h"

namespace chaski::CHASKI_ISA {

struct Elementwise {
    const float* x[2];
    Count n;
    int64_t width;
    float parameters[2];
    float* y;
};

template <F32x16 (*f)(F32x16)>
CHASKI_INLINE float value(const Elementwise& a, int64_t i) {
    return f({a.x[0][i]}).v;
}
template <F32x16 (*f)(F32x16, F32x16)>
CHASKI_INLINE float value(const Elementwise& a, int64_t i) {
    return f({a.x[0][i]}, {a.x[1][i]}).v;
}
template <F32x16 (*f)(F32x16, float)>
CHASKI_INLINE float value(const Elementwise& a, int64_t i) {
    return f({a.x[0][i]}, a.parameters[0]).v;
}
template <F32x16 (*f)(F32x16, float, float)>
CHASKI_INLINE float value(const Elementwise& a, int64_t i) {
    return f({a.x[0][i]}, a.parameters[0], a.parameters[1]).v;
}
template <F32x16 (*f)(F32x16, F32x16, float, float)>
CHASKI_INLINE float value(const Elementwise& a, int64_t i) {
    return f({a.x[0][i]}, {a.x[1][i]}, a.parameters[0], a.parameters[1]).v;
}

#define CHASKI_ELEMENTWISE(formula)                                \
    CHASKI_KERNEL(elementwise_##formula, Elementwise) {            \
        const int64_t i = thread();                                \
        if (i < *a.n * a.width) a.y[i] = value<formula>(a, i);     \
    }
CHASKI_FORMULAS(CHASKI_ELEMENTWISE)

}  // namespace chaski::CHASKI_ISA
