// Rows of activations as the rule of matmul.h rounds them, in the bytes that one machine sends another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels.h"

namespace chaski {

// A reader that only rounds rows does not need the rows themselves: any rows that are rounded to the same
// int8, the same scales and the same shifts will do. `rounded_rows` sends what makes such rows, and makes
// sure of it: it rounds them itself. A row for which it is not so, as one with values that are not finite, is
// sent as it is.
//
//   for each row a byte, which is 1 where it is rounded, else 0; then for each row
//     rounded   for each block of 32 the int8 values and amax (float32), or
//               for each super-block of 256 the int8 values, amax, and eight shifts of 4 bits
//     else      its floats
//
// k: the length of a row, a multiple of 32, or of 256 `in_super_blocks`.
std::vector<std::uint8_t> rounded_rows(const Kernels& kernels, const float* x, std::int64_t n, std::int64_t k,
                                       bool in_super_blocks);

// Fills `out` [n][k] with rows that are rounded as those that were given above. Returns false, with rows that
// mean nothing, where the bytes are not those of this many rows.
bool unrounded_rows(std::span<const std::uint8_t> bytes, std::int64_t n, std::int64_t k, bool in_super_blocks,
                    float* out);

}  // namespace chaski
