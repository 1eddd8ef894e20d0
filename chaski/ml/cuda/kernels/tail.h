// The end of products of few tokens. In programs with CHASKI_FORMULA, it is an elementwise operation of the
// results and its rounding: a thread block takes the panels of both operands one after the other, and the
// warp that ends the last panel of 256 columns rounds these, for the tokens whose sums it adds.
#pragma once

#include "stages.h"

#if defined(CHASKI_FORMULA)
#include "formula.h"
#endif

namespace chaski::CHASKI_ISA {

// The results of a thread, which adds up the floats of one row of a panel for each of kTiles tokens.
template <int kTiles>
struct Results {
#if defined(CHASKI_FORMULA)
    static constexpr int kColumns = 32 * kEach, kPanels = kColumns / kLanes;

    float first[kTiles];  // of the first operand's panel

    CHASKI_INLINE static float* values(const Matmul& a) {
        return a.tail.y != nullptr ? a.tail.y : a.parts[0].y;
    }
    // Takes the sum of token number `token` of the share.
    template <class Stage>
    CHASKI_INLINE void put(const Matmul& a, const Share& share, const Stage& ended, int tile, int token,
                           float y) {
        const Part& own = a.parts[ended.part];
        const int64_t row = static_cast<int64_t>(ended.panel) * kLanes + lane();
        if (share.begin + token >= share.end || row >= own.rows) return;
        if (own.bias != nullptr) y = y + own.bias[share.bias(own.rows) + row];
        if (ended.part < CHASKI_OPERANDS - 1) {
            first[tile] = y;
            return;
        }
        constexpr auto f = CHASKI_FORMULA;
        const float x = CHASKI_OPERANDS == 1 ? y : first[tile];
        values(a)[(share.begin + token) * own.rows + row] = value<f>(a.tail.parameters, x, y);
    }
    // Ends a panel: all threads of a warp call it after its tokens `begin` and `begin` + 1 of kTokens, and
    // those 8 later.
    template <int kTokens, class Stage>
    CHASKI_INLINE void end(const Matmul& a, const Share& share, const Stage& ended, int begin) const {
        if (ended.part < CHASKI_OPERANDS - 1 || share.begin + begin >= share.end) return;
        const int64_t rows = a.parts[0].rows;
        const int panels = static_cast<int>((rows + kLanes - 1) / kLanes), group = ended.panel / kPanels;
        const int left = panels - group * kPanels, total = left < kPanels ? left : kPanels;
        const int thread = static_cast<int>(threadIdx.x % 32);
        int is_last = 0;
        device::barrier_of_warp();
        if (thread == 0) {
            const int64_t counter = (share.begin + begin) * ((rows + kColumns - 1) / kColumns) + group;
            is_last = device::arrive(a.tail.arrivals + counter, static_cast<uint32_t>(total));
        }
        if (!device::value_of(is_last, 0)) return;
        const int64_t column = static_cast<int64_t>(group) * kColumns + kEach * thread;
        const bool exists = column < rows;
#pragma unroll 1
        for (int i = 0; i < 2 * kTiles; ++i) {
            const int token = begin + 8 * (i / 2) + i % 2;
            if (token >= kTokens || share.begin + token >= share.end) continue;
            const int64_t at = (share.begin + token) * rows + column;
            float x[kEach] = {};
            if (exists) load_each(values(a) + at, x);
            quantize(x, at, exists, a.tail.quantized);
        }
    }
#else
    template <class Stage>
    CHASKI_INLINE void put(const Matmul& a, const Share& share, const Stage& ended, int, int token, float y) {
        ended.finish(a, share, token, y);
    }
    template <int kTokens, class Stage>
    CHASKI_INLINE void end(const Matmul&, const Share&, const Stage&, int) const {}
#endif
};

}  // namespace chaski::CHASKI_ISA
