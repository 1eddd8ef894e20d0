#include "elementwise.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace chaski {

void RowsStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        std::memcpy(y_ + i * width_, x_ + indices_[i] * width_, width_ * sizeof(float));
    }
}

void RopeTableStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    auto pairs = static_cast<std::int64_t>(frequencies_.size());
    for (std::int64_t i = begin; i < end; ++i) {
        float* cos = table_ + i * 2 * pairs;
        for (std::int64_t j = 0; j < pairs; ++j) {
            float angle = static_cast<float>(positions_[i]) * frequencies_[j];
            cos[j] = std::cos(angle) * magnitude_;
            cos[pairs + j] = std::sin(angle) * magnitude_;
        }
    }
}

void ColumnsStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        std::memcpy(y_ + i * width_, x_ + i * source_width_ + first_, width_ * sizeof(float));
    }
}

void PositionScaleStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        std::int64_t steps = (positions_[i] + offset_) / length_;
        factors_[i] = static_cast<float>(1.0 + beta_ * std::log1p(static_cast<double>(steps)));
    }
}

void IndexCheckStep::prepare(const Sizes& sizes) {
    std::int64_t limit = limit_.in(sizes);
    for (std::int64_t i = 0; i < sizes[dim_]; ++i) {
        if (indices_[i] < 0 || indices_[i] >= limit) {
            throw std::invalid_argument(name_ + "[" + std::to_string(i) +
                                        "] = " + std::to_string(indices_[i]) + " is not between 0 and " +
                                        std::to_string(limit - 1));
        }
    }
}

}  // namespace chaski
