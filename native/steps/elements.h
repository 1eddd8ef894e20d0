// Elementwise and norm steps, which may quantize their results.
#pragma once

#include <string>
#include <vector>

#include "kinds.h"
#include "ops.h"
#include "quantizer.h"

namespace chaski {

// Calls normalize(x, y) for each of a token's `heads` rows of `size` elements.
template <class F>
std::unique_ptr<Step> norm(int dim, std::int64_t heads, std::int64_t size, const float* x, float* y,
                           const Quantizer& quantize, F normalize) {
    return each_row(dim, [=](std::int64_t i) {
        for (std::int64_t head = i * heads; head < (i + 1) * heads; ++head) {
            normalize(x + head * size, y + head * size);
        }
        quantize(y, i * heads * size, heads * size);
    });
}

// Returns the operation with a name; throws std::invalid_argument if there is none.
const Elementwise& find_elementwise(const Ops& ops, const std::string& name);

// An elementwise operation with any number of operands and parameters.
std::unique_ptr<Step> elementwise(const Elementwise& op, int dim, std::int64_t width,
                                  const std::vector<const float*>& operands, std::vector<float> parameters,
                                  float* y, const Quantizer& quantize);

// Multiplies each of the `parts` of each row, which have `width` elements, by its factor.
std::unique_ptr<Step> scale_rows(const Ops& ops, int dim, std::int64_t parts, std::int64_t width,
                                 const float* x, const float* factors, float* y);

// The root mean square of each row.
std::unique_ptr<Step> rms(int dim, std::int64_t width, const float* x, float* y);

// The sum of each of `heads` parts of the row. Sums are serial in double.
std::unique_ptr<Step> head_sums(int dim, std::int64_t heads, std::int64_t size, const float* x, float* y);

// max(0, x - mean - multiplier · standard deviation), both of the row. Sums are serial in double, so the bits
// are the same on every instruction set.
std::unique_ptr<Step> gaussian_top_k(int dim, std::int64_t width, float multiplier, const float* x, float* y);

// 1 + beta · ln(1 + floor((position + offset) / length)). It uses libm, so the bits are the same on every
// instruction set.
std::unique_ptr<Step> position_scale(int dim, const std::int32_t* positions, std::int64_t length, double beta,
                                     std::int64_t offset, float* factors);

}  // namespace chaski
