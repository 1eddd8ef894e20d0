#include "ngrams.h"

#include <algorithm>
#include <cmath>

namespace chaski {

std::unique_ptr<Step> token_numbers(int dim, const std::int32_t* tokens, float* y) {
    return each_row(dim, [=](std::int64_t i) { y[i] = static_cast<float>(tokens[i] + 1); });
}

std::unique_ptr<Step> hash_ngrams(int dim, NgramHash hash, std::int64_t width, const std::int32_t* tokens,
                                  const float* before, std::int32_t* y) {
    return each_row(dim, [=](std::int64_t i) {
        std::uint64_t mixed = static_cast<std::uint64_t>(tokens[i]) * hash.multipliers[0];
        bool is_near = true;
        for (std::size_t j = 1; j < hash.multipliers.size(); ++j) {
            const auto token =
                static_cast<std::int32_t>(before[i * width + static_cast<std::int64_t>(j) - 1]) - 1;
            is_near = is_near && token >= 0 && token != hash.separator;
            mixed ^= static_cast<std::uint64_t>(is_near ? token : hash.separator) * hash.multipliers[j];
        }
        y[i] = static_cast<std::int32_t>(hash.offset + mixed % hash.size);
    });
}

std::unique_ptr<Step> rooted_dots(int dim, std::int64_t heads, std::int64_t size, float factor, float least,
                                  const float* a, const float* b, float* y) {
    return each_row(dim, [=](std::int64_t i) {
        for (std::int64_t h = i * heads; h < (i + 1) * heads; ++h) {
            float sum = 0.0f;
            for (std::int64_t j = h * size; j < (h + 1) * size; ++j) sum += a[j] * b[j];
            sum *= factor;
            y[h] = sum == 0.0f ? 0.0f : std::copysign(std::sqrt(std::max(std::fabs(sum), least)), sum);
        }
    });
}

}  // namespace chaski
