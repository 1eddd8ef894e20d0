// Rounds activations to int8 blocks in the step that computes them.
#pragma once

#include <cstring>

#include "kernels.h"

namespace chaski {

// The quantized activations from element `offset` on, a multiple of 32 or 256. Row lengths are such
// multiples, so rows follow each other in all parts as in a float buffer.
inline Activations behind(const Activations& x, std::int64_t offset) {
    if (x.values == nullptr) return {nullptr, nullptr, nullptr, x.floats + offset};
    return {x.values + offset, x.scales + offset / 32, x.sums + offset / 16, nullptr,
            x.supers == nullptr ? nullptr : x.supers + offset / kSuperElements};
}

// Copies `count` quantized activations.
inline void copy_activations(const Activations& from, std::int64_t count, const Activations& to) {
    std::memcpy(to.values, from.values, count);
    std::memcpy(to.scales, from.scales, count / 32 * sizeof(float));
    std::memcpy(to.sums, from.sums, count / 16 * sizeof(std::int16_t));
    if (to.supers != nullptr) {
        std::memcpy(to.supers, from.supers, count / kSuperElements * sizeof(SuperScale));
    }
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
