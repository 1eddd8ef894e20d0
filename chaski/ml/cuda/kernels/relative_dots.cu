// Products with vectors for distances: see steps/relative_dots.h.
#include "kernel.h"

namespace chaski::CHASKI_ISA {

struct RelativeDots {
    const float* x;  // [row][heads][size]
    Count n;
    int64_t heads;
    int64_t size;
    const float* table;  // [row][size]
    Count table_rows;
    const int32_t* first;
    int64_t count;
    float* y;  // [row][heads][count]
};

// There is a thread for each element of the result.
CHASKI_KERNEL(relative_dots, RelativeDots) {
    const int64_t i = thread(), head = i / a.count;
    if (head >= *a.n * a.heads) return;
    const int64_t row = a.first[head / a.heads] + i % a.count;
    const bool is_inside = row >= 0 && row < *a.table_rows;
    float sum = 0.0f;
    for (int64_t d = 0; d < a.size; ++d) {
        sum = device::fma(is_inside ? a.table[row * a.size + d] : 0.0f, a.x[head * a.size + d], sum);
    }
    a.y[i] = sum;
}

}  // namespace chaski::CHASKI_ISA
