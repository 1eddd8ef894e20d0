// Copies the arrays of a batch, which are uploaded as one, to their places (chaski/ml/cuda/uploads.py).
#include "kernel.h"

namespace chaski::CHASKI_ISA {

// An array: its start after the list of all arrays, its number of words of four bytes, and its target. If it
// has a source, a negative word -1 - i stands for element i of the source, which is the result of an earlier
// run.
struct Part {
    int64_t begin;
    int64_t words;
    int32_t* target;
    const float* source;
};

struct Unpack {
    const Part* parts;
};

// There are some thread blocks for each array, whose number is y of the grid.
CHASKI_KERNEL(unpack, Unpack) {
    const Part part = a.parts[blockIdx.y];
    const auto* from =
        reinterpret_cast<const int32_t*>(reinterpret_cast<const uint8_t*>(a.parts) + part.begin);
    for (int64_t i = thread(); i < part.words; i += num_threads()) {
        const int32_t word = from[i];
        const bool is_found = part.source != nullptr && word < 0;
        part.target[i] = is_found ? static_cast<int32_t>(part.source[-1 - word]) : word;
    }
}

}  // namespace chaski::CHASKI_ISA
