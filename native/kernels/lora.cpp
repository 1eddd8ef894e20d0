// Products with the narrow matrices of LoRA adapters, by the rule of lora.h, for rows at any addresses.
#include "lora.h"

#include <algorithm>

#include "attention_kernel.h"
#include "tiles.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

// Rows of a tile; number of panels of B that a row passes together, so that their sums do not wait for each
// other.
constexpr int kRows = kRegisters >= 32 ? 4 : 2;
constexpr int kPanels = kRegisters >= 32 ? 4 : 2;
constexpr int kSums = 4;
// Elements of a type, and 16 of them widened.
struct F32Lines {
    using Element = float;
    CHASKI_INLINE static F32x16 load(const float* p) { return load_f32(p); }
};
struct F16Lines {
    using Element = std::uint16_t;
    CHASKI_INLINE static F32x16 load(const std::uint16_t* p) { return load_f16(p); }
};
struct BF16Lines {
    using Element = std::uint16_t;
    CHASKI_INLINE static F32x16 load(const std::uint16_t* p) { return load_bf16(p); }
};

// Columns of 16 rows in a cache line, and in the 4 KB that are prefetched.
template <class L>
inline constexpr int kLineColumns = 64 / (kLanes * sizeof(typename L::Element));
template <class L>
inline constexpr int kAhead = 64 * kLineColumns<L>;

// Calls f(Lines) for a type.
template <class F>
CHASKI_INLINE void with_lines(DType type, const F& f) {
    if (type == DType::F16) return f(F16Lines{});
    if (type == DType::BF16) return f(BF16Lines{});
    f(F32Lines{});
}

template <class L, int N>
void down_tile(const typename L::Element* lines, std::int64_t columns, const LoraRow* rows, std::int64_t at,
               const typename L::Element* next) {
    F32x16 sums[N][kSums];
    for (auto& of_row : sums) {
        for (F32x16& sum : of_row) sum = splat(0.0f);
    }
    const auto add = [&](auto j, std::int64_t k) __attribute__((always_inline)) {
        const F32x16 line = L::load(lines + kLanes * (k + j));
        unroll<N>([&](auto n) __attribute__((always_inline)) {
            sums[n][j] = fma(line, splat(rows[n].x[k + j]), sums[n][j]);
        });
    };
    const std::int64_t whole = columns / kSums * kSums;
    const auto* ahead = lines + kLanes * kAhead<L>;
    for (std::int64_t k = 0; k < whole; k += kSums, ahead += kLanes * kSums) {
        if (k == whole - kAhead<L>) ahead = next;
        unroll<kSums>([&](auto j) __attribute__((always_inline)) {
            if (j % kLineColumns<L> == 0) __builtin_prefetch(ahead + kLanes * j, 0, 2);
            add(j, k);
        });
    }
    unroll<kSums - 1>([&](auto j) __attribute__((always_inline)) {
        if (whole + j < columns) add(j, whole);
    });
    unroll<N>([&](auto n) __attribute__((always_inline)) {
        const F32x16 sum = (sums[n][0] + sums[n][1]) + (sums[n][2] + sums[n][3]);
        store_f32(rows[n].t + at, sum * splat(rows[n].scale));
    });
}

template <class L, int P, int N>
void up_tile(const typename L::Element* lines, const Lora& m, std::int64_t panel, const LoraRow* rows,
             const typename L::Element* next) {
    F32x16 y[P][N];
    // Lanes of an incomplete last panel.
    const auto count = static_cast<int>(std::min<std::int64_t>(m.rows - kLanes * (panel + P - 1), kLanes));
    const auto is_cut = [&](int p) __attribute__((always_inline)) { return p == P - 1 && count < kLanes; };
    unroll<P * N>([&](auto i) __attribute__((always_inline)) {
        constexpr int p = i / N, n = i % N;
        const float* from = rows[n].y + kLanes * (panel + p);
        y[p][n] = is_cut(p) ? load_f32(from, count) : load_f32(from);
    });
    for (std::int64_t r = 0; r < m.rank; ++r) {
        F32x16 column[P];
        unroll<P>([&](auto p) __attribute__((always_inline)) {
            column[p] = L::load(lines + kLanes * (p * m.rank + r));
            if (r % kLineColumns<L> == 0) __builtin_prefetch(next + kLanes * (p * m.rank + r), 0, 2);
        });
        unroll<N>([&](auto n) __attribute__((always_inline)) {
            const F32x16 t = splat(rows[n].t[r]);
            unroll<P>([&](auto p) __attribute__((always_inline)) { y[p][n] = fma(column[p], t, y[p][n]); });
        });
    }
    unroll<P * N>([&](auto i) __attribute__((always_inline)) {
        constexpr int p = i / N, n = i % N;
        float* to = rows[n].y + kLanes * (panel + p);
        is_cut(p) ? store_f32(to, y[p][n], count) : store_f32(to, y[p][n]);
    });
}

}  // namespace

void lora_down(const Lora& m, const LoraRow* rows, std::int64_t n, const std::byte* next) {
    with_lines(m.type_a, [&](auto of_type) {
        using L = decltype(of_type);
        const auto* a = reinterpret_cast<const typename L::Element*>(m.a);
        for (std::int64_t panel = 0; panel < m.rank_panels(); ++panel) {
            const auto* lines = a + kLanes * panel * m.columns;
            const auto* behind = panel + 1 < m.rank_panels()
                                     ? lines + kLanes * m.columns
                                     : reinterpret_cast<const typename L::Element*>(next);
            for_parts<kRows>(n, [&](std::int64_t first, auto size) {
                down_tile<L, size>(lines, m.columns, rows + first, kLanes * panel, behind);
            });
        }
    });
}

void lora_up(const Lora& m, std::int64_t panel_begin, std::int64_t panel_end, const LoraRow* rows,
             std::int64_t n, const std::byte* next) {
    with_lines(m.type_b, [&](auto of_type) {
        using L = decltype(of_type);
        const auto* b = reinterpret_cast<const typename L::Element*>(m.b);
        const auto* ahead = reinterpret_cast<const typename L::Element*>(next);
        std::int64_t panel = panel_begin;
        const auto pass = [&](auto panels) {
            const auto* lines = b + kLanes * panel * m.rank;
            for_parts<kRows>(n, [&](std::int64_t first, auto size) {
                up_tile<L, panels, size>(lines, m, panel, rows + first, ahead);
            });
            panel += panels;
            ahead += panels * kLanes * m.rank;
        };
        while (panel + kPanels <= panel_end) pass(Index<kPanels>{});
        while (panel < panel_end) pass(Index<1>{});
    });
}

}  // namespace chaski::CHASKI_ISA
