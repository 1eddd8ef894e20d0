// Rounds activations to int8 blocks in the step that computes them.
#pragma once

#include "kernels.h"

namespace chaski {

// The quantized activations from element `offset` on, a multiple of 32 or 256. Row lengths are such
// multiples, so rows follow each other in all parts as in a float buffer.
inline Activations behind(const Activations& x, std::int64_t offset) {
    if (x.values == nullptr) return {nullptr, nullptr, nullptr, x.floats + offset};
    return {x.values + offset, x.scales + offset / 32, x.sums + offset / 16, nullptr,
            x.supers == nullptr ? nullptr : x.supers + offset / kSuperElements};
}

// Rounds a step's result to int8 blocks, for the matrix products that read it. Does nothing without `out`.
struct Quantizer {
    const Kernels& kernels;
    Activations out;

    void operator()(const float* x, std::int64_t offset, std::int64_t count) const {
        if (out.values != nullptr) kernels.quantize_rows(x + offset, 1, count, behind(out, offset));
    }
};

}  // namespace chaski
