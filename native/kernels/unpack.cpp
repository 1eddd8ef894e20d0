// Unpacking of panels to slabs (unpack.h), and of rows to floats.
#include "unpack.h"

#include "blocks.h"
#include "entry_points.h"

namespace chaski::CHASKI_ISA {

// kCentred: codes less the offset, as signed bytes.
template <class Format, bool kCentred>
static void unpack(const uint8_t* panel, int64_t elements, uint8_t* slab) {
    constexpr int kSubs = Format::kElements / Format::kSub;
    constexpr int kBytes = kSubBytes<Format::kSub, Format::kMins>;
    for (int64_t at = 0; at < elements;
         at += Format::kElements, panel += Format::kBytes, slab += kSubs * kBytes) {
        const Format block{{panel}};
        unroll<kSubs>([&](auto s) __attribute__((always_inline)) {
            uint8_t* sub = slab + s * kBytes;
            unroll<Format::kSub / 4>([&](auto i) __attribute__((always_inline)) {
                const U8x64 codes = block.template codes<s.value, i.value>();
                if constexpr (kCentred && Format::kOffset != 0) {
                    store_u8(sub + 64 * i, subtract_bytes(codes, Format::kOffset));
                } else {
                    store_u8(sub + 64 * i, codes);
                }
            });
            auto* scales = reinterpret_cast<float*>(sub + kLanes * Format::kSub);
            store_f32(scales, block.template scale<s.value>());
            if constexpr (Format::kMins) store_f32(scales + kLanes, block.template min<s.value>());
        });
    }
}

template <class Weights>
static void widen(const uint8_t* panel, int64_t elements, uint8_t* slab) {
    auto* lines = reinterpret_cast<float*>(slab);
    // A pair is never cut.
    const int64_t count = Weights::kType == DType::BF16 ? elements + elements % 2 : elements;
    for (int64_t i = 0; i < count; ++i) store_f32(lines + kLanes * i, Weights::load(panel, i));
}

template <class Format>
constexpr Unpacker quantized() {
    Unpacker u = {Format::kType,    Format::kSub,      Format::kMins,         Format::kOffset,
                  Format::kMaxCode, Format::kElements, unpack<Format, false>, nullptr};
    if constexpr (kHasAmx) u.unpack_centred = unpack<Format, true>;
    return u;
}
template <class Weights>
constexpr Unpacker kFloat = {Weights::kType, 1,      false, 0, 0, Weights::kType == DType::BF16 ? 2 : 1,
                             widen<Weights>, nullptr};

template <class List>
struct Unpackers;
template <class... Formats>
struct Unpackers<FormatList<Formats...>> {
    static constexpr Unpacker kAll[] = {
        kFloat<F32Weights>,
        kFloat<F16Weights>,
        kFloat<BF16Weights>,
        quantized<Formats>()...,
    };
};

const Unpacker& unpacker_of(DType type) {
    const Unpacker* u = Unpackers<QuantizedFormats>::kAll;
    while (u->type != type) ++u;
    return *u;
}

// One lane of the slab of a block.
static void read_lane(const Unpacker& u, const uint8_t* slab, int lane, float* out) {
    for (int at = 0; at < u.block_elements; at += u.sub) {
        const uint8_t* tail = slab + kLanes * u.sub + 4 * lane;
        const auto scale = read<float>(tail);
        const float min = u.mins ? read<float>(tail + 64) : 0.0f;
        for (int i = 0; i < u.sub; ++i) {
            const int code = slab[64 * (i / 4) + 4 * lane + i % 4] - u.offset;
            *out++ = scale * static_cast<float>(code) - min;
        }
        slab += kLanes * u.sub + (u.mins ? 128 : 64);
    }
}

void unpack_row(const Matrix& w, int64_t row, float* out) {
    const Unpacker& u = unpacker_of(w.type);
    const uint8_t* panel = w.panels + panel_start(w.type, w.k, row / kLanes);
    const int64_t block_bytes = panels_abreast(w.type) * kLanes * row_bytes(w.type, u.block_elements);
    const int lane = static_cast<int>(row % kLanes);
    alignas(64) uint8_t slab[256 / 16 * kSubBytes<16, true>];  // of the largest block
    for (int64_t at = 0; at < w.k; at += u.block_elements, panel += block_bytes) {
        u.unpack(panel, u.block_elements, slab);
        if (is_quantized(w.type)) {
            read_lane(u, slab, lane, out + at);
        } else {
            for (int64_t i = 0; i < u.block_elements && at + i < w.k; ++i)
                out[at + i] = read<float>(slab + 64 * i + 4 * lane);
        }
    }
}

}  // namespace chaski::CHASKI_ISA
