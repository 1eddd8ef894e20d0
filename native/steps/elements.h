// Steps that work element by element, or norm by norm, and may quantize what they make.
#pragma once

#include "kinds.h"
#include "ops.h"
#include "quantizer.h"

namespace chaski {

// normalize(x, y) for every one of the `heads` rows of `size` elements that a token has.
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

// y = f(x, count, y).
template <class F>
std::unique_ptr<Step> map(int dim, std::int64_t width, const float* x, float* y, const Quantizer& quantize,
                          F f) {
    return each_stretch(dim, width, [=](std::int64_t at, std::int64_t count) {
        f(x + at, count, y + at);
        quantize(y, at, count);
    });
}

// y = f(a, b, count, y).
template <class F>
std::unique_ptr<Step> map(int dim, std::int64_t width, const float* a, const float* b, float* y,
                          const Quantizer& quantize, F f) {
    return each_stretch(dim, width, [=](std::int64_t at, std::int64_t count) {
        f(a + at, b + at, count, y + at);
        quantize(y, at, count);
    });
}

// Each row times its own factor.
std::unique_ptr<Step> scale_rows(const Ops& ops, int dim, std::int64_t width, const float* x,
                                 const float* factors, float* y);

// 1 + beta · ln(1 + floor((position + offset) / length)). By libm, so equal for every instruction set.
std::unique_ptr<Step> position_scale(int dim, const std::int32_t* positions, std::int64_t length, double beta,
                                     std::int64_t offset, float* factors);

}  // namespace chaski
