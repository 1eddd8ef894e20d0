// What values are multiplied by for the levels of a scale.
#pragma once

#include "simd.h"

namespace chaski::CHASKI_ISA {

// 1 / scale, and 0 where that is infinite: such a scale is 0 in half precision.
CHASKI_INLINE float inverse_of(float scale) {
    const float inverse = 1.0f / scale;
    return __builtin_fabsf(inverse) < __builtin_inff() ? inverse : 0.0f;
}

}  // namespace chaski::CHASKI_ISA
