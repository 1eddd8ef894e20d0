// Activations as int8 blocks, made where a step makes their values.
#pragma once

#include "kernels.h"

namespace chaski {

// What follows element `offset`, a multiple of 32, or 256, where they are quantized. Rows are such multiples
// long, so they follow each other in all parts as they do in a float buffer.
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
