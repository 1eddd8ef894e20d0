// One element of an elementwise operation, from formulas.h of the native core.
#pragma once

#include "formulas.h"
#include "kernel.h"

namespace chaski::CHASKI_ISA {

using Parameters = const float (&)[2];

template <F32x16 (*f)(F32x16)>
CHASKI_INLINE float value(Parameters, float x, float) {
    return f({x}).v;
}
template <F32x16 (*f)(F32x16, F32x16)>
CHASKI_INLINE float value(Parameters, float x, float y) {
    return f({x}, {y}).v;
}
template <F32x16 (*f)(F32x16, float)>
CHASKI_INLINE float value(Parameters p, float x, float) {
    return f({x}, p[0]).v;
}
template <F32x16 (*f)(F32x16, float, float)>
CHASKI_INLINE float value(Parameters p, float x, float) {
    return f({x}, p[0], p[1]).v;
}
template <F32x16 (*f)(F32x16, F32x16, float, float)>
CHASKI_INLINE float value(Parameters p, float x, float y) {
    return f({x}, {y}, p[0], p[1]).v;
}

}  // namespace chaski::CHASKI_ISA
