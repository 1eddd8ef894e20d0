// Kernels that do one thing, for benchmarks/gpu_first.py.
#include "kernel.h"

namespace chaski::CHASKI_ISA {

struct Nothing {
    int32_t* y;
};

CHASKI_KERNEL(nothing, Nothing) {
    if (a.y == nullptr) barrier();  // never: so that the kernel is not empty
}

// Four chains of tensor instructions in each warp.
CHASKI_KERNEL(tensor, Nothing) {
    const auto own = static_cast<uint32_t>(threadIdx.x);
    const uint32_t left[4] = {own, own + 1, own + 2, own + 3};
    int32_t sums[4][4] = {};
    for (int round = 0; round < CHASKI_ROUNDS; ++round) {
        for (auto& chain : sums) device::multiply_32_ss(chain, left, own, own + round);
    }
    int32_t total = 0;
    for (const auto& chain : sums) {
        for (int i = 0; i < 4; ++i) total += chain[i];
    }
    a.y[thread()] = total;
}

}  // namespace chaski::CHASKI_ISA
