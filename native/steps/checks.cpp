#include "checks.h"

#include <stdexcept>

namespace chaski {

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

void GroupCheckStep::prepare(const Sizes& sizes) {
    if (sizes[dim_] * count_ > sizes[source_dim_]) {
        throw std::invalid_argument(name_ + ": " + std::to_string(sizes[source_dim_]) + " rows are not " +
                                    std::to_string(sizes[dim_]) + " times " + std::to_string(count_));
    }
}

}  // namespace chaski
