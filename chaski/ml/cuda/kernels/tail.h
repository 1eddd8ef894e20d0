// The end of products of few tokens. In programs with CHASKI_FORMULA, it is an elementwise operation of the
// results and its rounding: a thread block takes the panels of both operands one after the other, and the
// warp that ends the last panel of 256 columns rounds these, for the tokens whose sums it adds. In programs
// with CHASKI_PAIRS, results are heads: the warp that ends the last panel of two heads turns and stores them.
#pragma once

#include "stages.h"

#if defined(CHASKI_FORMULA)
#include "formula.h"
#endif

namespace chaski::CHASKI_ISA {

// Ends a panel: all threads of a warp call it. Returns whether it is the last of `total` panels at a counter.
CHASKI_INLINE bool is_last_panel(uint32_t* counter, int total) {
    int is_last = 0;
    device::barrier_of_warp();
    if (threadIdx.x % 32 == 0) is_last = device::arrive(counter, static_cast<uint32_t>(total));
    return device::value_of(is_last, 0) != 0;
}

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
        const int64_t counter = (share.begin + begin) * ((rows + kColumns - 1) / kColumns) + group;
        if (!is_last_panel(a.tail.arrivals + counter, total)) return;
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
#if defined(CHASKI_PAIRS)
    template <int kTokens, class Stage>
    CHASKI_INLINE void end(const Matmul& a, const Share& share, const Stage& ended, int begin) const {
        if (share.begin + begin >= share.end) return;
        const Part& own = a.parts[ended.part];
        const int size = ended.part == CHASKI_VALUE_PART ? CHASKI_VALUE_SIZE : CHASKI_SIZE;
        const int rows = static_cast<int>(own.rows), heads = rows / size, each = 2 * size / kLanes;
        const int pair = ended.panel / each, left = rows / kLanes - pair * each;
        const int64_t counter = ((share.begin + begin) * 3 + ended.part) * a.tail.pairs + pair;
        if (!is_last_panel(a.tail.arrivals + counter, left < each ? left : each)) return;
        const bool exists = 2 * pair + group() % 2 < heads;
        const int head = exists ? 2 * pair + group() % 2 : heads - 1;
#pragma unroll 1
        for (int i = 0; i < 2 * kTiles; ++i) {
            const int token = begin + 8 * (i / 2) + i % 2;
            if (token >= kTokens || share.begin + token >= share.end) continue;
            put_head(a, ended.part, share.begin + token, head, heads, exists);
        }
    }
    // Puts a head of a token where attention reads it. As a call, it does not take registers from the
    // products.
    __attribute__((noinline)) static void put_head(const Matmul& a, int part, int64_t token, int head,
                                                   int heads, bool exists) {
        constexpr int kHead = CHASKI_SIZE, kValue = CHASKI_VALUE_SIZE;
        const int64_t number = token * heads + head;
        const float* angles = a.tail.angles + token * 2 * kPairs;
        if (part == CHASKI_VALUE_PART) {
            const OwnElements<kValue> x(a.parts[part].y + number * kValue);
            write_head<CHASKI_VALUES>(sized<kValue>(a.tail.values, false), head, a.tail.cells[token], exists,
                                      x);
            return;
        }
        const OwnElements<kHead> x(a.parts[part].y + number * kHead, angles);
        if (part == CHASKI_KEY_PART) {
            write_head<CHASKI_KEYS>(sized<kHead>(a.tail.keys, true), head, a.tail.cells[token], exists, x);
            return;
        }
        for (int i = 0; i < x.kCount && exists; ++i) {
            if (x.exists(i)) a.tail.queries[number * kHead + x.number(i)] = x.v[i];
        }
    }
#else
    template <int kTokens, class Stage>
    CHASKI_INLINE void end(const Matmul&, const Share&, const Stage&, int) const {}
#endif
#endif
};

}  // namespace chaski::CHASKI_ISA
