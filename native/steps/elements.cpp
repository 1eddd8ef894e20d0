#include "elements.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

namespace chaski {

const Elementwise& find_elementwise(const Ops& ops, const std::string& name) {
    for (const Elementwise* op = ops.elementwise; op->name != nullptr; ++op) {
        if (op->name == name) return *op;
    }
    throw std::invalid_argument("elementwise: no operation " + name);
}

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

std::unique_ptr<Step> scale_rows(const Ops& ops, int dim, std::int64_t parts, std::int64_t width,
                                 const float* x, const float* factors, float* y) {
    return each_row(dim, [=, &ops](std::int64_t i) {
        for (std::int64_t part = i * parts; part < (i + 1) * parts; ++part) {
            ops.scale(x + part * width, factors[part], width, y + part * width);
        }
    });
}

std::unique_ptr<Step> rms(int dim, std::int64_t width, const float* x, float* y) {
    return each_row(dim, [=](std::int64_t i) {
        double total = 0.0;
        for (const float* v = x + i * width; v < x + (i + 1) * width; ++v) total += double{*v} * *v;
        y[i] = static_cast<float>(std::sqrt(total / static_cast<double>(width)));
    });
}

std::unique_ptr<Step> head_sums(int dim, std::int64_t heads, std::int64_t size, const float* x, float* y) {
    return each_row(dim, [=](std::int64_t i) {
        for (std::int64_t head = i * heads; head < (i + 1) * heads; ++head) {
            double total = 0.0;
            for (std::int64_t j = 0; j < size; ++j) total += x[head * size + j];
            y[head] = static_cast<float>(total);
        }
    });
}

std::unique_ptr<Step> gaussian_top_k(int dim, std::int64_t width, float multiplier, const float* x,
                                     float* y) {
    return each_row(dim, [=](std::int64_t i) {
        const float* row = x + i * width;
        double total = 0.0;
        for (std::int64_t j = 0; j < width; ++j) total += row[j];
        double mean = total / static_cast<double>(width);
        double squares = 0.0;
        for (std::int64_t j = 0; j < width; ++j) squares += (row[j] - mean) * (row[j] - mean);
        double deviation = std::sqrt(squares / static_cast<double>(width));
        auto cutoff = static_cast<float>(mean + multiplier * deviation);
        for (std::int64_t j = 0; j < width; ++j) y[i * width + j] = std::max(row[j] - cutoff, 0.0f);
    });
}

std::unique_ptr<Step> position_scale(int dim, const std::int32_t* positions, std::int64_t length, double beta,
                                     std::int64_t offset, float* factors) {
    return each_row(dim, [=](std::int64_t i) {
        std::int64_t steps = (positions[i] + offset) / length;
        factors[i] = static_cast<float>(1.0 + beta * std::log1p(static_cast<double>(steps)));
    });
}

}  // namespace chaski
