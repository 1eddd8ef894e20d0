// Reads rows of a matrix in panels as floats. Compiled for one format (CHASKI_FORMAT) or one type of floats
// (CHASKI_WEIGHTS).
#include "kernel.h"

namespace chaski::CHASKI_ISA {

struct Embedding {
    const int32_t* ids;
    Count n;
    int64_t k;
    const uint8_t* panels;
    float* y;
};

#if defined(CHASKI_FORMAT)

// A part of 32 elements of a block: one sub-block of 32, or a pair of sub-blocks of 16. All of it is read
// before any of it is written, because the compiler must assume that source and target overlap.
template <class Format>
struct Part {
    static constexpr int kSub = Format::kSub;
    float values[32];

    // The elements of sub-block S times its scale, plus its min. The first is element kFirst of the part.
    template <int S, int kFirst>
    CHASKI_INLINE void read(const Format& block, float scale, float min) {
        unroll<kSub / 4>([&](auto i) __attribute__((always_inline)) {
            const uint32_t codes = block.template codes<S, decltype(i)::value>().v;
            for (int b = 0; b < 4; ++b) {
                const int code = static_cast<int>(codes >> 8 * b & 255) - Format::kOffset;
                const float value = scale * static_cast<float>(code);
                values[kFirst + 4 * i.value + b] = Format::kMins ? value + min : value;
            }
        });
    }
    template <int S, int kFirst>
    CHASKI_INLINE void write(float* y) const {
        for (int i = 0; i < kSub; i += 4) {
            const float* four = values + kFirst + i;
            *reinterpret_cast<float4*>(y + S * kSub + i) = {four[0], four[1], four[2], four[3]};
        }
    }
};

template <int kPart, class Format>
CHASKI_INLINE void write_part(const Format& block, float* y) {
    Part<Format> part;
    if constexpr (Format::kIsSuper) {
        constexpr int kSub = Format::kSub, kPair = kSub == 16 ? kPart : kPart / 2;
        constexpr int kFirst = first_of_pair<kSub, kPair>, kSecond = kFirst + kPairStep<kSub>;
        const int32_t scales = block.template scales<kPair>().v;
        float mins[2] = {};
        if constexpr (Format::kMins) {
            // Pairs of scales of 16 elements share the pairs of mins of 32.
            constexpr int kPairOfMins = kPair / (Format::kMinSub / kSub);
            const int32_t both = block.template mins<kPairOfMins>().v;
            const float dmin = block.dmin().v;
            mins[0] = dmin * static_cast<float>(static_cast<int16_t>(both));
            mins[1] = dmin * static_cast<float>(both >> 16);
        }
        const float d = block.d().v;
        const float first = d * static_cast<float>(static_cast<int16_t>(scales));
        const float second = d * static_cast<float>(scales >> 16);
        if constexpr (kSub == 16) {
            part.template read<kFirst, 0>(block, first, mins[0]);
            part.template read<kSecond, 16>(block, second, mins[1]);
            part.template write<kFirst, 0>(y);
            part.template write<kSecond, 16>(y);
        } else {
            part.template read<kPart, 0>(block, kPart % 2 == 0 ? first : second, mins[kPart % 2]);
            part.template write<kPart, 0>(y);
        }
    } else {
        constexpr int kSubs = 32 / Format::kSub;
        float min = 0.0f;
        if constexpr (Format::kMins) min = -block.template min<kPart>().v;
        unroll<kSubs>([&](auto s) __attribute__((always_inline)) {
            constexpr int kIndex = decltype(s)::value, kS = kPart * kSubs + kIndex;
            part.template read<kS, 16 * kIndex>(block, block.template scale<kS>().v, min);
        });
        unroll<kSubs>([&](auto s) __attribute__((always_inline)) {
            constexpr int kIndex = decltype(s)::value;
            part.template write<kPart * kSubs + kIndex, 16 * kIndex>(y);
        });
    }
}

// There is a group of 16 lanes for each part of a panel's block; the row's lane writes its elements. A warp
// reads the same part of two blocks.
CHASKI_KERNEL(embedding, Embedding) {
    using Format = CHASKI_FORMAT;
    constexpr int kParts = Format::kElements / 32;
    const int64_t token = blockIdx.x, row = a.ids[token];
    const int warp = static_cast<int>(blockIdx.y) * num_groups() / 2 + group() / 2;
    const int at = warp / kParts * 2 + group() % 2;
    const bool is_own = row % kLanes == lane(), exists = at < a.k / Format::kElements;
    if (!(is_own & exists & (token < *a.n))) return;  // `&` reads both numbers at the same time
    const Format block{{a.panels + row / kLanes * panel_bytes(Format::kType, a.k) + at * Format::kBytes}};
    float* y = a.y + token * a.k + at * Format::kElements;
    unroll<kParts>([&](auto part) __attribute__((always_inline)) {
        if (warp % kParts == part.value) write_part<decltype(part)::value>(block, y);
    });
}

#else

using Weights = CHASKI_WEIGHTS;

// There is a thread for each element. It reads at the place of the row's lane.
CHASKI_KERNEL(embedding, Embedding) {
    constexpr int kBytes = Weights::kType == DType::F16 ? 2 : 4;  // of a lane
    const int64_t token = blockIdx.x, row = a.ids[token];
    const int64_t i = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
    if (token >= *a.n || i >= a.k) return;
    const uint8_t* panel = a.panels + panel_start(Weights::kType, a.k, row / kLanes);
    a.y[token * a.k + i] = Weights::load(panel + (row % kLanes - lane()) * kBytes, i).v;
}

#endif

}  // namespace chaski::CHASKI_ISA
