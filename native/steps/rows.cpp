#include "rows.h"

#include <cstring>

namespace chaski {

namespace {

void copy(const float* from, std::int64_t count, float* to) { std::memcpy(to, from, count * sizeof(float)); }

}  // namespace

std::unique_ptr<Step> copy_rows(int dim, std::int64_t width, const float* x, const std::int32_t* indices,
                                float* y) {
    return each_row(dim, [=](std::int64_t i) { copy(x + indices[i] * width, width, y + i * width); });
}

std::unique_ptr<Step> scatter(int dim, std::int64_t width, const float* x, const std::int32_t* places,
                              float* y) {
    return each_row(dim, [=](std::int64_t i) { copy(x + i * width, width, y + places[i] * width); });
}

std::unique_ptr<Step> slice(int dim, std::int64_t groups, std::int64_t source_width, std::int64_t first,
                            std::int64_t width, const float* x, float* y) {
    return each_row(dim, [=](std::int64_t i) {
        for (std::int64_t j = i * groups; j < (i + 1) * groups; ++j) {
            copy(x + j * source_width + first, width, y + j * width);
        }
    });
}

std::unique_ptr<Step> concat_columns(int dim, std::int64_t groups, std::int64_t width,
                                     std::int64_t target_width, std::int64_t first, std::int64_t stride,
                                     const float* x, float* y) {
    return each_row(dim, [=](std::int64_t i) {
        for (std::int64_t group = i * groups; group < (i + 1) * groups; ++group) {
            const float* from = x + group * width;
            float* to = y + group * target_width + first;
            if (stride == 1) {
                std::memcpy(to, from, width * sizeof(float));
            } else {
                for (std::int64_t j = 0; j < width; ++j) to[j * stride] = from[j];
            }
        }
    });
}

std::unique_ptr<Step> average_rows(const Ops& ops, int dim, std::int64_t width, std::int64_t count,
                                   const float* x, float* y) {
    return each_row(dim, [=, &ops](std::int64_t i) {
        const float* from = x + i * count * width;
        float* to = y + i * width;
        copy(from, width, to);
        for (std::int64_t j = 1; j < count; ++j) ops.add(to, from + j * width, width, to);
        ops.scale(to, 1.0f / static_cast<float>(count), width, to);
    });
}

std::unique_ptr<Step> space_to_depth(int dim, std::int64_t width, std::int64_t count, const float* x,
                                     float* y) {
    return each_row(dim, [=](std::int64_t i) {
        const float* from = x + i * count * width;
        float* to = y + i * count * width;
        for (std::int64_t j = 0; j < count; ++j) {
            for (std::int64_t k = 0; k < width; ++k) to[k * count + j] = from[j * width + k];
        }
    });
}

}  // namespace chaski
