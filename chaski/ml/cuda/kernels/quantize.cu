// Rounds activations to int8, in super-blocks or blocks of 32 (CHASKI_SUPER_BLOCKS).
#include "quantize.h"

namespace chaski::CHASKI_ISA {

struct Quantize {
    const float* x;
    Count n;
    int64_t k;
    Quantized to;
};

CHASKI_KERNEL(quantize_rows, Quantize) {
    const int64_t at = thread() * kEach;
    const bool exists = at < *a.n * a.k;
    float x[kEach] = {};
    if (exists) load_each(a.x + at, x);
    quantize(x, at, exists, a.to);
}

}  // namespace chaski::CHASKI_ISA
