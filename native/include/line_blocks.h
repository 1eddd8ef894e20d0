// Blocks of Q2_K, Q4_K and Q5_K: lines of sub-blocks whose scales and minimums are small multiples of two
// numbers of their block.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace chaski {

// Fills in the share of each element in the error of its block: sqrt(x² + twice the block's mean of x²),
// times its importance. A large value moves a product most, so that magnitudes count too, but less than
// proportionally. The mean adds the squares in NumPy's order.
//
// x, importance: count blocks of `elements`, which is 32, 64, 128 or 256; importance may be null.
void weigh_elements(const float* x, const float* importance, std::int64_t count, int elements,
                    float* weights);

// The steps of the search: numbers of intervals over the range of a sub-block, and levels of the largest
// scale of a block.
struct LineSteps {
    const float *intervals, *places;
    std::int64_t num_intervals, num_places;
};

inline constexpr DType kLineTypes[] = {DType::Q2_K, DType::Q4_K, DType::Q5_K};

// Encodes blocks of 256 elements as one of kLineTypes.
//
// The best line of a sub-block has to be rounded to multiples. This loses most where one element counts a
// thousandfold, or where all elements lie on a grid. So the lines around the best one are compared by the
// error that the elements have with them, also for the two numbers that suit the found levels best.
void encode_lines(const Kernels& kernels, DType type, const float* values, const float* weights,
                  std::int64_t blocks, const LineSteps& steps, std::uint8_t* out);

}  // namespace chaski
