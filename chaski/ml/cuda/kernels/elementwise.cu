// An elementwise operation (CHASKI_FORMULA). Values that products read are rounded to int8 in the same
// kernel.
#include "formula.h"
#include "quantize.h"

namespace chaski::CHASKI_ISA {

struct Elementwise {
    const float* x[2];
    Count n;
    int64_t width;
    float parameters[2];
    float* y;  // or null
    Quantized quantized;
};

// Divisions have branches, so a thread computes its two elements one after the other. Then some threads round
// eight elements each. Shared memory: the elements of a thread block. The lowering uses the same numbers.
constexpr int kThreads = 512, kOwn = 2, kElements = kThreads * kOwn;

template <auto f>
CHASKI_INLINE void compute(const Elementwise& a) {
    auto* results = reinterpret_cast<float*>(device::shared());
    const auto own = static_cast<int>(threadIdx.x);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kElements, count = *a.n * a.width;
    float x[kOwn][2] = {};
    for (int k = 0; k < kOwn; ++k) {
        const int64_t i = first + k * kThreads + own;
        for (int operand = 0; operand < 2; ++operand) {
            if (a.x[operand] != nullptr && i < count) x[k][operand] = a.x[operand][i];
        }
    }
    for (int k = 0; k < kOwn; ++k) {
        const int64_t i = first + k * kThreads + own;
        const float y = i < count ? value<f>(a.parameters, x[k][0], x[k][1]) : 0.0f;
        if (a.y != nullptr && i < count) a.y[i] = y;
        results[k * kThreads + own] = y;
    }
    if (a.quantized.values == nullptr) return;
    barrier();
    if (own >= kElements / kEach) return;
    float y[kEach];
    load_each(results + own * kEach, y);
    quantize(y, first + own * kEach, first + own * kEach < count, a.quantized);
}

CHASKI_KERNEL(elementwise, Elementwise) { compute<CHASKI_FORMULA>(a); }

}  // namespace chaski::CHASKI_ISA
