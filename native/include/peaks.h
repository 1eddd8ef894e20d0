// Loops that measure the peak speeds of the machine, for comparison with the speeds of kernels: loops in
// registers that only multiply and add as the kernels do, and a loop that reads memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chaski {

struct Peaks {
    // Each repeats its loop `steps` times, and returns the number of multiply-adds of one step.
    using Loop = int64_t (*)(int64_t steps);

    Loop int8;
    Loop bf16;  // null if the processor lacks the instruction
    Loop fp32;

    // Reads `bytes` bytes, a multiple of 1024. The result depends on all of them.
    uint8_t (*read)(const std::byte* data, int64_t bytes);
};

}  // namespace chaski
