// The peak speeds of the machine, to compare measured speeds with: loops in registers that multiply and add
// as the kernels do and do nothing else, and a loop that reads memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chaski {

struct Peaks {
    // Each repeats its loop `steps` times, and returns how many multiply-adds one step is.
    using Loop = int64_t (*)(int64_t steps);

    Loop int8;
    Loop bf16;  // null where the processor has no such instruction
    Loop fp32;

    // Reads every byte of a multiple of 1024; the result depends on all.
    uint8_t (*read)(const std::byte* data, int64_t bytes);
};

}  // namespace chaski
