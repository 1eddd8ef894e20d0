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

void PutRowsStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        std::memcpy(y_ + places_[i] * width_, x_ + i * width_, width_ * sizeof(float));
    }
}

namespace {

void require_groups(const char* step, std::int64_t rows, std::int64_t groups, std::int64_t count) {
    if (groups * count > rows) {
        throw std::invalid_argument(std::string(step) + ": " + std::to_string(rows) + " rows are not " +
                                    std::to_string(groups) + " times " + std::to_string(count));
    }
}

}  // namespace

void UnfoldStep::prepare(const Sizes& sizes) {
    require_groups("unfold", sizes[source_dim_], sizes[dim_], count_);
}

void UnfoldStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        const float* x = x_ + i * count_ * width_;
        float* y = y_ + i * count_ * width_;
        for (std::int64_t j = 0; j < count_; ++j) {
            for (std::int64_t k = 0; k < width_; ++k) y[k * count_ + j] = x[j * width_ + k];
        }
    }
}

void AverageRowsStep::prepare(const Sizes& sizes) {
    require_groups("average_rows", sizes[source_dim_], sizes[dim_], count_);
}

void AverageRowsStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        float* y = y_ + i * width_;
        const float* x = x_ + i * count_ * width_;
        std::memcpy(y, x, width_ * sizeof(float));
        for (std::int64_t j = 1; j < count_; ++j) ops_.add(y, x + j * width_, width_, y);
        ops_.scale(y, 1.0f / static_cast<float>(count_), width_, y);
    }
}

void ProductStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    std::memset(y_ + begin * width_, 0, (end - begin) * width_ * sizeof(float));
    for (std::int64_t k = 0; k < depth_; ++k) {
        for (std::int64_t i = begin; i < end; ++i) {
            ops_.add_scaled(y_ + i * width_, matrix_ + k * width_, x_[i * depth_ + k], width_);
        }
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

void PutColumnsStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        const float* x = x_ + i * width_;
        float* y = y_ + i * target_width_ + first_;
        for (std::int64_t j = 0; j < width_; ++j) y[j * stride_] = x[j];
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
