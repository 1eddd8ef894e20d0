// The one place where every block format is instantiated: panels to slabs (unpack.h), and rows to floats.
#include "unpack.h"

#include "blocks.h"
#include "entry_points.h"

namespace chaski::CHASKI_ISA {

template <class Format>
static void unpack(const uint8_t* panel, int64_t elements, uint8_t* slab) {
    constexpr int kSubs = Format::kElements / Format::kSub;
    constexpr int kBytes = kSubBytes<Format::kSub, Format::kMins>;
    for (int64_t at = 0; at < elements;
         at += Format::kElements, panel += Format::kBytes, slab += kSubs * kBytes) {
        const Format block{panel};
        unroll<kSubs>([&](auto s) __attribute__((always_inline)) {
            uint8_t* sub = slab + s * kBytes;
            unroll<Format::kSub / 4>([&](auto i) __attribute__((always_inline)) {
                store_u8(sub + 64 * i, block.template codes<s.value, i.value>());
            });
            auto* scales = reinterpret_cast<float*>(sub + kLanes * Format::kSub);
            store_f32(scales, block.template scale<s.value>());
            if constexpr (Format::kMins) store_f32(scales + kLanes, block.template min<s.value>());
        });
    }
}

template <class Format>
static constexpr Unpacker kUnpacker = {Format::kType,    Format::kSub,      Format::kMins, Format::kOffset,
                                       Format::kMaxCode, Format::kElements, unpack<Format>};

static const Unpacker kUnpackers[] = {
    kUnpacker<Q4_0>,   kUnpacker<Q4_1>,   kUnpacker<Q5_0>,  kUnpacker<Q5_1>, kUnpacker<Q8_0>,
    kUnpacker<Q2_K>,   kUnpacker<Q3_K>,   kUnpacker<Q4_K>,  kUnpacker<Q5_K>, kUnpacker<Q6_K>,
    kUnpacker<IQ4_NL>, kUnpacker<IQ4_XS>, kUnpacker<MXFP4>,
};

const Unpacker& unpacker_of(DType type) {
    for (const Unpacker& u : kUnpackers) {
        if (u.type == type) return u;
    }
    __builtin_unreachable();
}

// One block at a time: of its slab only the row's lane is used.
static void unpack_quantized_row(const Matrix& w, const uint8_t* panel, int lane, float* out) {
    const Unpacker& u = unpacker_of(w.type);
    alignas(64) uint8_t slab[kLanes * 256 + 16 * 128];
    const int64_t block_bytes = kLanes * row_bytes(w.type, u.block_elements);
    for (int64_t at = 0; at < w.k; at += u.block_elements, panel += block_bytes) {
        u.unpack(panel, u.block_elements, slab);
        const uint8_t* sub = slab;
        for (int e = 0; e < u.block_elements; e += u.sub, sub += slab_bytes(u, u.sub)) {
            const uint8_t* tail = sub + kLanes * u.sub + 4 * lane;
            const auto scale = read<float>(tail);
            const float min = u.mins ? read<float>(tail + 64) : 0.0f;
            for (int i = 0; i < u.sub; ++i) {
                const int code = sub[64 * (i / 4) + 4 * lane + i % 4] - u.offset;
                *out++ = scale * static_cast<float>(code) - min;
            }
        }
    }
}

// One value of each of 16 rows from `p`, the lane's out of them.
static float widen(DType type, const uint8_t* p, int lane) {
    float values[kLanes];
    switch (type) {
        case DType::F16:
            store_f32(values, load_f16(p));
            break;
        case DType::BF16:
            store_f32(values, load_bf16(p));
            break;
        default:
            return read<float>(p + 4 * lane);
    }
    return values[lane];
}

void unpack_row(const Matrix& w, int64_t row, float* out) {
    const uint8_t* panel = w.panels + row / kLanes * panel_bytes(w.type, w.k);
    const int lane = static_cast<int>(row % kLanes);
    if (is_quantized(w.type)) return unpack_quantized_row(w, panel, lane, out);
    const int64_t step = kLanes * row_bytes(w.type, 1);
    for (int64_t i = 0; i < w.k; ++i) out[i] = widen(w.type, panel + step * i, lane);
}

}  // namespace chaski::CHASKI_ISA
