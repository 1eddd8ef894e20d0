#include "streams.h"

namespace chaski {

std::unique_ptr<Step> mix_streams(const Ops& ops, int dim, std::int64_t streams, std::int64_t outputs,
                                  std::int64_t size, const float* x, const float* weights, float* y) {
    return each_row(dim, [=, &ops](std::int64_t i) {
        for (std::int64_t o = 0; o < outputs; ++o) {
            const float* factors = weights + i * streams * outputs + o;
            float* sums = y + (i * outputs + o) * size;
            ops.scale(x + i * streams * size, factors[0], size, sums);
            for (std::int64_t s = 1; s < streams; ++s) {
                ops.add_scaled(sums, x + (i * streams + s) * size, factors[s * outputs], size);
            }
        }
    });
}

namespace {

// Divides `count` lines of `count` numbers by their sums plus eps. Neighbours are `step` apart in a line.
void divide_by_sums(float* y, std::int64_t count, std::int64_t line, std::int64_t step, float eps) {
    for (std::int64_t i = 0; i < count; ++i) {
        float sum = 0.0f;
        for (std::int64_t j = 0; j < count; ++j) sum += y[i * line + j * step];
        sum += eps;
        for (std::int64_t j = 0; j < count; ++j) y[i * line + j * step] /= sum;
    }
}

}  // namespace

std::unique_ptr<Step> sinkhorn(const Ops& ops, int dim, std::int64_t size, std::int64_t iterations, float eps,
                               const float* x, float* y) {
    return each_row(dim, [=, &ops](std::int64_t i) {
        float* matrix = y + i * size * size;
        for (std::int64_t r = 0; r < size; ++r) {
            ops.softmax(x + (i * size + r) * size, size, matrix + r * size);
        }
        for (std::int64_t j = 0; j < size * size; ++j) matrix[j] += eps;
        divide_by_sums(matrix, size, 1, size, eps);
        for (std::int64_t iteration = 1; iteration < iterations; ++iteration) {
            divide_by_sums(matrix, size, size, 1, eps);
            divide_by_sums(matrix, size, 1, size, eps);
        }
    });
}

}  // namespace chaski
