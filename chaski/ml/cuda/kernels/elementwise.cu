// An elementwise operation (CHASKI_FORMULA, of formulas.h of the native core), a thread for eight elements.
// What products read is rounded to int8 at once.
#include "formulas.h"
#include "quantize.h"

namespace chaski::CHASKI_ISA {

struct Elementwise {
    const float* x[2];
    Count n;
    int64_t width;
    float parameters[2];
    float* y;  // or null
    Quantized quantized;
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

template <auto f>
CHASKI_INLINE void compute(const Elementwise& a) {
    const int64_t at = thread() * kEach, count = *a.n * a.width;
    float y[kEach];
    for (int i = 0; i < kEach; ++i) {
        y[i] = at + i < count ? value<f>(a, at + i) : 0.0f;
        if (a.y != nullptr && at + i < count) a.y[at + i] = y[i];
    }
    if (a.quantized.values != nullptr) quantize(y, at, at < count, a.quantized);
}

CHASKI_KERNEL(elementwise, Elementwise) { compute<CHASKI_FORMULA>(a); }

}  // namespace chaski::CHASKI_ISA
