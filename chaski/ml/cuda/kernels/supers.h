// Super-blocks for tensor instructions: numbers that multiply sums of values instead of values.
#pragma once

#include "kernel.h"

namespace chaski::CHASKI_ISA {

// The low and high bytes of the sums of a token's values in four sub-blocks of kSub, number 4 t and later,
// times 2^shift. `scales` has the token's shifts from word 4 on and, of blocks of 32, these sums from word 8
// on; `sums` has the sums of 16 values. After the last sub-block, the bytes are zeros.
template <int kSub>
CHASKI_INLINE uint2 bytes_of_sums(const int32_t* scales, const int32_t* sums, int t) {
    if constexpr (kSub == 32) {
        if (t >= 2) return {0, 0};
        const auto words = reinterpret_cast<const uint2*>(scales + 8)[t];
        return {device::select_bytes(words.x, words.y, 0x6420),
                device::select_bytes(words.x, words.y, 0x7531)};
    } else {
        uint2 bytes = {0, 0};
        for (int i = 0; i < 4; ++i) {
            const int32_t pair = sums[2 * t + i / 2], shifts = scales[4 + t];
            const int32_t sum = (i % 2 == 0 ? static_cast<int16_t>(pair) : pair >> 16)
                                << (i / 2 == 0 ? static_cast<int16_t>(shifts) : shifts >> 16);
            bytes.x |= static_cast<uint32_t>(sum & 255) << 8 * i;
            bytes.y |= static_cast<uint32_t>(sum >> 8 & 255) << 8 * i;
        }
        return bytes;
    }
}

}  // namespace chaski::CHASKI_ISA
