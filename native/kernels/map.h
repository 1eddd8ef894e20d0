// Loops over the elements of rows, 16 lanes at a time.
#pragma once

#include "panel.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

CHASKI_INLINE std::int64_t whole_lanes(std::int64_t count) { return count / kLanes * kLanes; }

// y = f(x...) for `count` elements; the tail goes through the same 16-lane code. y may be one of x.
template <class F, class... In>
CHASKI_INLINE void map(std::int64_t count, float* y, const F& f, const In*... x) {
    const std::int64_t whole = whole_lanes(count);
    for (std::int64_t i = 0; i < whole; i += kLanes) store_f32(y + i, f(load_f32(x + i)...));
    if (const int rest = static_cast<int>(count - whole); rest > 0) {
        store_f32(y + whole, f(load_f32(x + whole, rest)...), rest);
    }
}

}  // namespace chaski::CHASKI_ISA
