// Rows of a matrix in panels as floats. Compiled for one format (CHASKI_FORMAT) or one type of floats
// (CHASKI_WEIGHTS). A group of 16 lanes reads a block of a panel, and the lane of the row keeps its own.
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

// Elements of sub-block S times its scale, plus its min.
template <int S, class Format>
CHASKI_INLINE void write_sub_block(const Format& block, bool is_own, float scale, float min, float* y) {
    unroll<Format::kSub / 4>([&](auto i) __attribute__((always_inline)) {
        const uint32_t codes = block.template codes<S, decltype(i)::value>().v;
        for (int b = 0; b < 4 && is_own; ++b) {
            const float code = static_cast<float>(static_cast<int>(codes >> 8 * b & 255) - Format::kOffset);
            const float value = scale * code;
            y[S * Format::kSub + 4 * i.value + b] = Format::kMins ? value + min : value;
        }
    });
}

template <class Format>
CHASKI_INLINE void read_block(const Embedding& a) {
    const int64_t blocks = a.k / Format::kElements;
    const int64_t index = static_cast<int64_t>(blockIdx.x) * num_groups() + group();
    if (index >= *a.n * blocks) return;
    const int64_t token = index / blocks, at = index % blocks, row = a.ids[token];
    const Format block{{a.panels + row / kLanes * panel_bytes(Format::kType, a.k) + at * Format::kBytes}};
    const bool is_own = row % kLanes == lane();
    float* y = a.y + token * a.k + at * Format::kElements;
    if constexpr (Format::kIsSuper) {
        constexpr int kSub = Format::kSub;
        unroll<kSuperElements / kSub / 2>([&](auto pair) __attribute__((always_inline)) {
            constexpr int kFirst = first_of_pair<kSub, decltype(pair)::value>,
                          kSecond = kFirst + kPairStep<kSub>;
            const int32_t scales = block.template scales<decltype(pair)::value>().v;
            float mins[2] = {};
            if constexpr (Format::kMins) {
                // Pairs of scales of 16 elements share the pairs of mins of 32.
                constexpr int kPair = decltype(pair)::value / (Format::kMinSub / kSub);
                const int32_t both = block.template mins<kPair>().v;
                const float dmin = block.dmin().v;
                mins[0] = dmin * static_cast<float>(static_cast<int16_t>(both));
                mins[1] = dmin * static_cast<float>(both >> 16);
            }
            const float d = block.d().v;
            write_sub_block<kFirst>(block, is_own, d * static_cast<float>(static_cast<int16_t>(scales)),
                                    mins[0], y);
            write_sub_block<kSecond>(block, is_own, d * static_cast<float>(scales >> 16), mins[1], y);
        });
    } else {
        unroll<Format::kElements / 32>([&](auto s) __attribute__((always_inline)) {
            float min = 0.0f;
            if constexpr (Format::kMins) min = -block.template min<decltype(s)::value>().v;
            write_sub_block<decltype(s)::value>(block, is_own, block.template scale<decltype(s)::value>().v,
                                                min, y);
        });
    }
}

CHASKI_KERNEL(embedding, Embedding) { read_block<CHASKI_FORMAT>(a); }

#else

using Weights = CHASKI_WEIGHTS;

CHASKI_KERNEL(embedding, Embedding) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * num_groups() + group();
    if (index >= *a.n * a.k) return;
    const int64_t row = a.ids[index / a.k];
    const uint8_t* panel = a.panels + panel_start(Weights::kType, a.k, row / kLanes);
    const float value = Weights::load(panel, index % a.k).v;
    if (row % kLanes == lane()) a.y[index] = value;
}

#endif

}  // namespace chaski::CHASKI_ISA
