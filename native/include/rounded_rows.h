// Rows of activations, rounded by the rule of matmul.h, in the format that machines send each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels.h"

namespace chaski {

// A receiver that only rounds rows does not need the rows themselves: any rows that round to the same int8,
// scales and shifts suffice. `rounded_rows` sends data for such rows, and checks this by rounding them
// itself. A row that fails the check, such as one with values that are not finite, is sent unchanged.
//
//   for each row a byte, which is 1 if the row is rounded, else 0; then for each row
//     rounded   for each block of 32 the int8 values and amax (float32), or
//               for each super-block of 256 the int8 values, amax, and eight shifts of 4 bits
//     else      its floats
//
// k: the length of a row, a multiple of 32, or of 256 `in_super_blocks`.
std::vector<std::uint8_t> rounded_rows(const Kernels& kernels, const float* x, std::int64_t n, std::int64_t k,
                                       bool in_super_blocks);

// Fills `out` [n][k] with rows that round in the same way as the original ones. Returns false, with
// meaningless rows, if the bytes do not describe this many rows.
bool unrounded_rows(std::span<const std::uint8_t> bytes, std::int64_t n, std::int64_t k, bool in_super_blocks,
                    float* out);

}  // namespace chaski
