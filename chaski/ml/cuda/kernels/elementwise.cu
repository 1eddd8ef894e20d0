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
CHASKI_INLINE float value(const Elementwise&, float x, float) {
    return f({x}).v;
}
template <F32x16 (*f)(F32x16, F32x16)>
CHASKI_INLINE float value(const Elementwise&, float x, float y) {
    return f({x}, {y}).v;
}
template <F32x16 (*f)(F32x16, float)>
CHASKI_INLINE float value(const Elementwise& a, float x, float) {
    return f({x}, a.parameters[0]).v;
}
template <F32x16 (*f)(F32x16, float, float)>
CHASKI_INLINE float value(const Elementwise& a, float x, float) {
    return f({x}, a.parameters[0], a.parameters[1]).v;
}
template <F32x16 (*f)(F32x16, F32x16, float, float)>
CHASKI_INLINE float value(const Elementwise& a, float x, float y) {
    return f({x}, {y}, a.parameters[0], a.parameters[1]).v;
}

template <auto f>
CHASKI_INLINE void compute(const Elementwise& a) {
    const int64_t at = thread() * kEach, count = *a.n * a.width;
    float x[2][kEach] = {}, y[kEach];
    const bool is_whole = at + kEach <= count;
    for (int operand = 0; operand < 2; ++operand) {
        const float* from = a.x[operand];
        if (from == nullptr) continue;
        if (is_whole) {
            load_each(from + at, x[operand]);
        } else {
            for (int i = 0; i < kEach && at + i < count; ++i) x[operand][i] = from[at + i];
        }
    }
    for (int i = 0; i < kEach; ++i) y[i] = at + i < count ? value<f>(a, x[0][i], x[1][i]) : 0.0f;
    if (a.y != nullptr) {
        if (is_whole) {
            store_each(a.y + at, y);
        } else {
            for (int i = 0; i < kEach && at + i < count; ++i) a.y[at + i] = y[i];
        }
    }
    if (a.quantized.values != nullptr) quantize(y, at, at < count, a.quantized);
}

CHASKI_KERNEL(elementwise, Elementwise) { compute<CHASKI_FORMULA>(a); }

}  // namespace chaski::CHASKI_ISA
