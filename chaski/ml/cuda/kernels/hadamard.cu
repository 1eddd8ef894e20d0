// Rotates heads in blocks of CHASKI_BLOCK elements, with a group of 16 lanes for each block.
#include "rotation.h"

namespace chaski::CHASKI_ISA {

struct Hadamard {
    const float* x;
    Count n;
    int64_t blocks;  // of a row
    float* y;
};

CHASKI_KERNEL(hadamard, Hadamard) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * num_groups() + group();
    const bool exists = index < *a.n * a.blocks;
    const int64_t at = exists ? index * CHASKI_BLOCK : 0;
    rotate_block<CHASKI_BLOCK>(a.x + at, exists, a.y + at);
}

}  // namespace chaski::CHASKI_ISA
