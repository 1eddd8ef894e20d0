#include "relative_dots.h"

#include <algorithm>

namespace chaski {

void RelativeDotsStep::run(const Sizes& sizes, std::int64_t begin, std::int64_t end,
                           std::byte* scratch) const {
    const auto [heads, size, count] = job_;
    const std::int64_t table_rows = sizes[table_dim_];
    // The rows of the table that a row of x is multiplied with: [size][count].
    float* columns = reinterpret_cast<float*>(scratch);
    for (std::int64_t i = begin; i < end; ++i) {
        if (i == begin || first_[i] != first_[i - 1]) {
            for (std::int64_t j = 0; j < count; ++j) {
                const std::int64_t row = first_[i] + j;
                const bool is_inside = row >= 0 && row < table_rows;
                for (std::int64_t d = 0; d < size; ++d) {
                    columns[d * count + j] = is_inside ? table_[row * size + d] : 0.0f;
                }
            }
        }
        for (std::int64_t h = i * heads; h < (i + 1) * heads; ++h) {
            float* sums = y_ + h * count;
            std::fill_n(sums, count, 0.0f);
            for (std::int64_t d = 0; d < size; ++d) {
                ops_.add_scaled(sums, columns + d * count, x_[h * size + d], count);
            }
        }
    }
}

}  // namespace chaski
