// The order in which a thread block takes the weights of products of few tokens, and the end of a result.
#pragma once

#include "matmul_arguments.h"

namespace chaski::CHASKI_ISA {

// The panels that a thread block takes one after the other: those of both operands of an elementwise
// operation.
#if defined(CHASKI_FORMULA)
constexpr int kTogether = CHASKI_OPERANDS;
#else
constexpr int kTogether = 1;
#endif

// One stage of a thread block's work: a stretch along k of a panel, with `count` blocks of weights. Each of
// kTeams teams of kThreads threads copies and multiplies kUnit of them.
template <class Format, int kTeams, int kUnit, int kThreads>
struct Stage {
    static constexpr int kBlocks = kTeams * kUnit, kParts = 3;
    // Teams that read at the same time use different banks.
    static constexpr int kUnitBytes = kUnit * Format::kBytes + 64;

    int at;     // the number of its panel among the panels of all parts
    int part;   // kParts after the last stage
    int panel;  // of this part
    int begin;  // the number of its first block
    int count;

    // The first stage.
    CHASKI_INLINE explicit Stage(const Matmul& a) : at(static_cast<int>(blockIdx.x) * kTogether), begin(0) {
        find(a);
    }
    // The stage after this one, for this block of threads.
    CHASKI_INLINE Stage next(const Matmul& a) const {
        Stage found = *this;
        found.begin += kBlocks;
        if (is_last(a)) {
            found.begin = 0;
            const bool is_next = at % kTogether == kTogether - 1;
            found.at += is_next ? (static_cast<int>(gridDim.x) - 1) * kTogether + 1 : 1;
        }
        found.find(a);
        return found;
    }
    CHASKI_INLINE void find(const Matmul& a) {
        const int left = blocks_of(a) - begin;
        count = left < kBlocks ? left : kBlocks;
        const auto panels_of = [&](int number) {
            return static_cast<int>((static_cast<uint32_t>(a.parts[number].rows) + kLanes - 1) / kLanes);
        };
        if constexpr (kTogether == 2) {
            part = at >= 2 * panels_of(0) ? kParts : at % 2;
            panel = at / 2;
            return;
        }
        const int first = panels_of(0), second = first + panels_of(1), third = second + panels_of(2);
        part = (at >= first) + (at >= second) + (at >= third);
        panel = at - (part == 0 ? 0 : part == 1 ? first : second);
    }
    CHASKI_INLINE static int blocks_of(const Matmul& a) {
        return static_cast<int>(static_cast<uint32_t>(a.k) / Format::kElements);
    }
    CHASKI_INLINE bool is_last(const Matmul& a) const { return begin + count == blocks_of(a); }
    CHASKI_INLINE bool is_after_all() const { return part == kParts; }
    // The number of this thread's team, and of the thread in it.
    CHASKI_INLINE static int team() { return static_cast<int>(threadIdx.x / kThreads); }
    CHASKI_INLINE static int member() { return static_cast<int>(threadIdx.x % kThreads); }
    // Starts copying the weights of this stage to shared memory. Each team copies the weights that it
    // multiplies. `matrix` is the start of the matrix.
    CHASKI_INLINE void fetch(const Matmul& a, int64_t matrix, uint8_t* to) const {
        const int own = team() * kUnit, units = count - own < kUnit ? count - own : kUnit;
        if (is_after_all() || units <= 0) return;
        const auto bytes = static_cast<uint32_t>(panel_bytes(Format::kType, a.k));
        const auto first = static_cast<uint32_t>((begin + own) * Format::kBytes + 16 * member());
        const uint8_t* from = a.parts[part].panels + matrix + first +
                              static_cast<uint64_t>(static_cast<uint32_t>(panel)) * bytes;
        to += team() * kUnitBytes + 16 * member();
        constexpr int kWords = Format::kBytes / 16;
        const int words = (kUnit == 1 ? kWords : units * kWords) - member();
        unroll<(kUnit * kWords + kThreads - 1) / kThreads>([&](auto i) __attribute__((always_inline)) {
            constexpr int kWord = decltype(i)::value * kThreads;
            if ((kUnit == 1 && kWord + kThreads <= kWords) || kWord < words) {
                device::copy_16<16 * kWord>(to, from);
            }
        });
    }
    // Stores the sum of this lane's row of the panel for token number `token` of the share.
    CHASKI_INLINE void finish(const Matmul& a, const Share& share, int64_t token, float y) const {
        const Part& own = a.parts[part];
        const int64_t row = static_cast<int64_t>(panel) * kLanes + lane();
        if (share.begin + token >= share.end || row >= own.rows) return;
        if (own.bias != nullptr) y = y + own.bias[share.bias(own.rows) + row];
        const int64_t place = (share.begin + token) * own.rows + row;
        if (own.residual != nullptr) y = y + own.residual[place];
        own.y[place] = y;
    }
};

}  // namespace chaski::CHASKI_ISA
