// Operations that move rows, and operations that scale them or add to them.
#include "kernel.h"

namespace chaski::CHASKI_ISA {

// Rows of `width` elements, with a thread for each element.
struct Rows {
    const float* x;
    Count n;
    int64_t width;
    const int32_t* indices;
    float* y;
};

CHASKI_KERNEL(rows, Rows) {
    const int64_t i = thread();
    if (i < *a.n * a.width) a.y[i] = a.x[a.indices[i / a.width] * a.width + i % a.width];
}

CHASKI_KERNEL(scatter, Rows) {
    const int64_t i = thread();
    if (i < *a.n * a.width) a.y[a.indices[i / a.width] * a.width + i % a.width] = a.x[i];
}

struct Columns {
    const float* x;
    Count n;
    int64_t groups;  // of a row
    int64_t source_width;
    int64_t first;
    int64_t width;
    float* y;
};

CHASKI_KERNEL(slice, Columns) {
    const int64_t i = thread();
    if (i < *a.n * a.groups * a.width) {
        a.y[i] = a.x[i / a.width * a.source_width + a.first + i % a.width];
    }
}

struct Concat {
    const float* x;
    Count n;
    int64_t groups;  // of a row
    int64_t width;
    int64_t target_width;
    int64_t first;
    int64_t stride;
    float* y;
};

CHASKI_KERNEL(concat_columns, Concat) {
    const int64_t i = thread();
    if (i < *a.n * a.groups * a.width) {
        a.y[i / a.width * a.target_width + a.first + i % a.width * a.stride] = a.x[i];
    }
}

// `factors` has a number for each column.
struct Scaled {
    const float* x;
    Count n;
    int64_t width;
    const float* factors;
    float* y;
};

struct ScaledParts {
    const float* x;
    Count n;
    int64_t parts;  // of a row, of `width` elements
    int64_t width;
    const float* factors;
    float* y;
};

CHASKI_KERNEL(scale_rows, ScaledParts) {
    const int64_t i = thread();
    if (i < *a.n * a.parts * a.width) a.y[i] = a.x[i] * a.factors[i / a.width];
}

// The parts of all rows have the same factors.
CHASKI_KERNEL(scale_heads, ScaledParts) {
    const int64_t i = thread();
    if (i < *a.n * a.parts * a.width) a.y[i] = a.x[i] * a.factors[i / a.width % a.parts];
}

CHASKI_KERNEL(multiply_vector, Scaled) {
    const int64_t i = thread();
    if (i < *a.n * a.width) a.y[i] = a.x[i] * a.factors[i % a.width];
}

CHASKI_KERNEL(add_vector, Scaled) {
    const int64_t i = thread();
    if (i < *a.n * a.width) a.y[i] = a.x[i] + a.factors[i % a.width];
}

// `count` rows become one row of y, which has n rows.
struct Grouped {
    const float* x;
    Count n;
    int64_t width;
    int64_t count;
    float* y;
};

CHASKI_KERNEL(average_rows, Grouped) {
    const int64_t i = thread();
    if (i >= *a.n * a.width) return;
    const float* from = a.x + i / a.width * a.count * a.width + i % a.width;
    float sum = from[0];
    for (int64_t j = 1; j < a.count; ++j) sum = sum + from[j * a.width];
    a.y[i] = sum * (1.0f / static_cast<float>(a.count));
}

CHASKI_KERNEL(space_to_depth, Grouped) {
    const int64_t i = thread(), each = a.count * a.width;
    if (i >= *a.n * each) return;
    const int64_t row = i / each, k = i % each / a.count, j = i % a.count;
    a.y[i] = a.x[(row * a.count + j) * a.width + k];
}

// x (n, depth) times a plain matrix (depth, width): y = fma(x, matrix, y) along the depth.
struct Product {
    const float* x;
    Count n;
    int64_t depth;
    int64_t width;
    const float* matrix;
    float* y;
};

CHASKI_KERNEL(product, Product) {
    const int64_t i = thread();
    if (i >= *a.n * a.width) return;
    float sum = 0.0f;
    for (int64_t k = 0; k < a.depth; ++k) {
        sum = device::fma(a.matrix[k * a.width + i % a.width], a.x[i / a.width * a.depth + k], sum);
    }
    a.y[i] = sum;
}

// Sums of rows in double precision, one element after the other. A thread block computes a row: all threads
// compute kStretch terms together, and the first thread adds them up. Shared memory: the terms, and the sum.
constexpr int kStretch = 2048;

// The sum of f(element), in all threads.
template <class F>
CHASKI_INLINE double row_sum(const float* row, int64_t width, const F& f) {
    auto* terms = reinterpret_cast<double*>(device::shared());
    double total = 0.0;
    for (int64_t first = 0; first < width; first += kStretch) {
        const auto size = static_cast<int>(width - first < kStretch ? width - first : kStretch);
        barrier();
        for (int i = static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x)) {
            terms[i] = f(row[first + i]);
        }
        barrier();
        if (threadIdx.x != 0) continue;
#pragma unroll 16
        for (int i = 0; i < size; ++i) total += terms[i];
    }
    if (threadIdx.x == 0) terms[kStretch] = total;
    barrier();
    return terms[kStretch];
}

struct Statistics {
    const float* x;
    Count n;
    int64_t width;
    float* y;
};

struct HeadSums {
    const float* x;
    Count n;
    int64_t heads;
    int64_t size;
    float* y;
};

// There is a thread block for each head.
CHASKI_KERNEL(head_sums, HeadSums) {
    const int64_t row = blockIdx.x;
    if (row >= *a.n * a.heads) return;
    const double total = row_sum(a.x + row * a.size, a.size, [](double v) { return v; });
    if (threadIdx.x == 0) a.y[row] = static_cast<float>(total);
}

CHASKI_KERNEL(rms, Statistics) {
    const int64_t row = blockIdx.x;
    if (row >= *a.n) return;
    const double total = row_sum(a.x + row * a.width, a.width, [](double v) { return v * v; });
    if (threadIdx.x != 0) return;
    a.y[row] = static_cast<float>(device::square_root(total / static_cast<double>(a.width)));
}

// max(0, x - mean - multiplier · deviation) of each row.
struct GaussianTopK {
    const float* x;
    Count n;
    int64_t width;
    double multiplier;
    float* y;
};

CHASKI_KERNEL(gaussian_top_k, GaussianTopK) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * a.width;
    if (blockIdx.x >= *a.n) return;
    const float* row = a.x + at;
    const auto width = static_cast<double>(a.width);
    const double mean = row_sum(row, a.width, [](double v) { return v; }) / width;
    const double squares = row_sum(row, a.width, [&](double v) { return (v - mean) * (v - mean); });
    const double deviation = device::square_root(squares / width);
    const auto cutoff = static_cast<float>(mean + a.multiplier * deviation);
    for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        const float v = row[i] - cutoff;
        a.y[at + i] = v < 0.0f ? 0.0f : v;
    }
}

struct Rope {
    const float* x;
    Count n;
    int64_t heads;
    int64_t size;
    int64_t pairs;
    int64_t neox;
    const float* table;  // [token][2][pairs]
    float* y;
};

// There is a thread for each pair, and one for each element after the pairs.
CHASKI_KERNEL(rope, Rope) {
    const int64_t each = a.size - a.pairs, i = thread(), row = i / each, j = i % each;
    if (row >= *a.n * a.heads) return;
    const float* x = a.x + row * a.size;
    float* y = a.y + row * a.size;
    if (j >= a.pairs) {
        y[j + a.pairs] = x[j + a.pairs];
        return;
    }
    const float* cos = a.table + row / a.heads * 2 * a.pairs;
    const float* sin = cos + a.pairs;
    const int64_t step = a.neox ? 1 : 2, apart = a.neox ? a.pairs : 1;
    const float first = x[step * j], second = x[step * j + apart];
    y[step * j] = first * cos[j] - second * sin[j];
    y[step * j + apart] = first * sin[j] + second * cos[j];
}

}  // namespace chaski::CHASKI_ISA
