// The header that every kernel includes: the weight formats and vector functions of the native core, with a
// lane for each thread (simd_cuda.h).
#pragma once

#include "blocks.h"
#include "k_blocks.h"
#include "matmul.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {

using device::barrier;

// A number of rows that is known only when a plan runs. It is stored on the device. A launch may have more
// threads.
using Count = const int64_t*;

CHASKI_INLINE float infinity() { return device::as_float(0x7f800000); }

// The number of this group of 16 lanes within its block, and the number of groups.
CHASKI_INLINE int group() { return static_cast<int>(threadIdx.x) / kLanes; }
CHASKI_INLINE int num_groups() { return static_cast<int>(blockDim.x) / kLanes; }
// The number of this thread, and the number of threads, in all blocks of a launch.
CHASKI_INLINE int64_t thread() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
CHASKI_INLINE int64_t num_threads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

CHASKI_INLINE int64_t padded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

}  // namespace chaski::CHASKI_ISA
