#include "elements.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace chaski {

std::unique_ptr<Step> elementwise(const Elementwise& op, int dim, std::int64_t width,
                                  const std::vector<const float*>& operands, std::vector<float> parameters,
                                  float* y, const Quantizer& quantize) {
    std::array<const float*, kMaxElementwiseOperands> x;
    x.fill(operands.front());
    std::copy(operands.begin(), operands.end(), x.begin());
    return each_stretch(dim, width, [=, apply = op.apply](std::int64_t at, std::int64_t count) {
        auto from = x;
        for (const float*& place : from) place += at;
        apply(from.data(), parameters.data(), count, y + at);
        quantize(y, at, count);
    });
}

std::unique_ptr<Step> scale_rows(const Ops& ops, int dim, std::int64_t width, const float* x,
                                 const float* factors, float* y) {
    return each_row(
        dim, [=, &ops](std::int64_t i) { ops.scale(x + i * width, factors[i], width, y + i * width); });
}

std::unique_ptr<Step> position_scale(int dim, const std::int32_t* positions, std::int64_t length, double beta,
                                     std::int64_t offset, float* factors) {
    return each_row(dim, [=](std::int64_t i) {
        std::int64_t steps = (positions[i] + offset) / length;
        factors[i] = static_cast<float>(1.0 + beta * std::log1p(static_cast<double>(steps)));
    });
}

}  // namespace chaski
