// Rotary positions as steps.
#pragma once

#include <vector>

#include "kinds.h"
#include "ops.h"

namespace chaski {

// The rotation of each pair of elements, by one of a row's `width` positions.
struct RopeTurns {
    std::vector<float> frequencies;
    std::vector<std::int32_t> axes;  // one per pair, each below `width`
    std::int64_t width;
    float magnitude;
    std::int32_t block = 1;  // positions are rounded down to multiples of it
};

// cos and sin of position · frequency, times the magnitude: [row][2][pairs]. It uses libm, so the bits are
// the same on every instruction set. Positions are [row][width].
std::unique_ptr<Step> rope_table(int dim, const std::int32_t* positions, RopeTurns turns, float* table);

// Ops::rope describes the pairs of elements that are rotated together.
struct RopeRows {
    std::int64_t pairs;
    bool neox;
    const float* table;  // [row][2][pairs]

    const float* cos(std::int64_t row) const { return table + row * 2 * pairs; }
    const float* sin(std::int64_t row) const { return cos(row) + pairs; }
};

// Ops::hadamard of rows of `width` elements.
std::unique_ptr<Step> hadamard_rows(const Ops& ops, int dim, std::int64_t width, std::int64_t block,
                                    const float* x, float* y);

std::unique_ptr<Step> rotate_rows(const Ops& ops, int dim, const RopeRows& rope, std::int64_t heads,
                                  std::int64_t size, const float* x, float* y);

}  // namespace chaski
