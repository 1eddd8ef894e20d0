// Unpacking of blocks without super-blocks to slabs (unpack.h).
#pragma once

#include "blocks.h"
#include "unpack.h"

namespace chaski::CHASKI_ISA {

// kCentred: codes less the offset, as signed bytes.
template <class Format, bool kCentred, int kSubBlock>
CHASKI_INLINE void unpack_codes(const Format& block, uint8_t* lines) {
    unroll<Format::kSub / 4>([&](auto i) __attribute__((always_inline)) {
        const U8x64 codes = block.template codes<kSubBlock, i.value>();
        if constexpr (kCentred && Format::kOffset != 0) {
            store_u8(lines + 64 * i, subtract_bytes(codes, Format::kOffset));
        } else {
            store_u8(lines + 64 * i, codes);
        }
    });
}

// `__restrict` lets the compiler share what several lines of codes have in common.
template <class Format, bool kCentred>
static void unpack_blocks(const uint8_t* __restrict panel, int64_t elements, uint8_t* __restrict slab) {
    constexpr int kSub = Format::kSub, kSubs = 32 / kSub;
    static_assert(kSubs == 1 || !Format::kMins);
    for (int64_t at = 0; at < elements; at += Format::kElements, panel += Format::kBytes) {
        const Format block{{panel}};
        unroll<Format::kElements / 32>([&](auto s) __attribute__((always_inline)) {
            auto* scales = reinterpret_cast<float*>(slab + kLanes * 32);
            unroll<kSubs>([&](auto i) __attribute__((always_inline)) {
                constexpr int kS = s.value * kSubs + i.value;
                unpack_codes<Format, kCentred, kS>(block, slab + kLanes * kSub * i);
                store_f32(scales + kLanes * i, block.template scale<kS>());
            });
            if constexpr (Format::kMins) store_f32(scales + kLanes, block.template min<s.value>());
            slab += kBlockBytes<Format::kMins, kSub>;
        });
    }
}

}  // namespace chaski::CHASKI_ISA
