// The rotation of heads before they are stored in few bits. Every element becomes a mixture of all elements
// of its block, so no element stands out and takes the levels of the others.
//
// The rotation is the product of each `block` consecutive elements with the Hadamard matrix in Sylvester's
// order over sqrt(block). The matrix is symmetric and its own inverse. For blocks of a power of two:
//
//   for h = 1, 2, 4, ..., block / 2, and all i without bit h:
//       x[i], x[i + h] = x[i] + x[i + h], x[i] - x[i + h]
//   then each x[i] = x[i] · hadamard_scale(block)
//
// All sums and products round to float32. Each h reads the results of the one before.
#pragma once

#include <cstdint>

namespace chaski {

inline constexpr int64_t kLeastHadamard = 16;  // elements of a block

// The float32 that is nearest to 1 / sqrt(block).
[[maybe_unused]] static constexpr float hadamard_scale(int64_t block) {
    float scale = 1.0f;
    for (; block >= 4; block /= 4) scale *= 0.5f;
    return block == 2 ? scale * 0.707106781186547524f : scale;
}

}  // namespace chaski
