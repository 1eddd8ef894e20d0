// The table of kernels of this instruction set.
#include <chrono>

#include "cpu_features.h"
#include "entry_points.h"
#include "kernels.h"
#include "peaks.h"
#include "tiles.h"

// Functions of files that are compiled for further instructions: products of bf16, and matrix products of
// int8.
#if defined(__AVX512VNNI__)
#define CHASKI_ISA_BF16 avx512_bf16
#elif defined(CHASKI_NEON)
#define CHASKI_ISA_BF16 neon_bf16
namespace chaski::neon_i8mm {
void matmul_quantized(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                      int64_t n, const Output& out, void* scratch, const Variant& variant);
int64_t scratch_bytes_quantized(int64_t k, int64_t n);
}  // namespace chaski::neon_i8mm
#endif

#if defined(CHASKI_ISA_BF16)
namespace chaski::CHASKI_ISA_BF16 {
void matmul_bf16(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                 const Output& out, void* scratch);
int64_t scratch_bytes_bf16(int64_t k, int64_t n);
}  // namespace chaski::CHASKI_ISA_BF16
#endif

#define CHASKI_TEXT_OF(name) #name
#define CHASKI_TEXT(name) CHASKI_TEXT_OF(name)

namespace chaski::CHASKI_ISA {

Peaks peaks();

#if defined(CHASKI_ISA_BF16)
static bool has_bf16() { return cpu_features().bf16; }
static constexpr auto kMatmulBf16 = CHASKI_ISA_BF16::matmul_bf16;
static constexpr auto kScratchBf16 = CHASKI_ISA_BF16::scratch_bytes_bf16;
#else
static bool has_bf16() { return false; }
static constexpr auto kMatmulBf16 = matmul_bf16;
static constexpr auto kScratchBf16 = scratch_bytes_bf16;
#endif

#if defined(CHASKI_NEON)
// The instructions take as long as those of float32, and weights need no widening.
static bool pairs_are_fast() { return true; }
#else
// Multiply-adds per nanosecond; the best of a few runs.
static double rate_of(Peaks::Loop loop) {
    constexpr int64_t kSteps = 2000;
    double best = 0;
    for (int run = 0; run < 5; ++run) {
        const auto begin = std::chrono::steady_clock::now();
        const auto work = static_cast<double>(kSteps * loop(kSteps));
        const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
        if (work > best * time.count()) best = work / time.count();
    }
    return best;
}

// True if many tokens are faster with pairs of bf16 than with float32: on some processors the instruction
// takes as long as four of float32. It is measured once, in a few microseconds, and does not change results.
static bool pairs_are_fast() {
    static const bool fast = [] {
        const Peaks own = peaks();
        return own.bf16 != nullptr && rate_of(own.bf16) > rate_of(own.fp32);
    }();
    return fast;
}
#endif

static auto matmul_of_bf16(int64_t n) {
    return has_bf16() && (n <= kFloatStreamTokens || pairs_are_fast()) ? kMatmulBf16 : matmul_bf16;
}

template <auto kQuantized>
static void matmul(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                   const Output& out, void* scratch, const Variant& variant) {
    if (is_quantized(w.type)) return kQuantized(w, panel_begin, panel_end, x, n, out, scratch, variant);
    const auto part = w.type == DType::BF16 ? matmul_of_bf16(n) : matmul_float;
    part(w, panel_begin, panel_end, x, n, out, scratch);
}

template <auto kQuantized>
static int64_t scratch_bytes(const Matrix& w, int64_t n) {
    if (w.type == DType::BF16) {
        const int64_t as_floats = scratch_bytes_bf16(w.k, n);
        return has_bf16() && kScratchBf16(w.k, n) > as_floats ? kScratchBf16(w.k, n) : as_floats;
    }
    return is_quantized(w.type) ? kQuantized(w.k, n) : scratch_bytes_float(n);
}

// The table with these products of quantized weights, which unpack in registers up to this many tokens.
template <auto kMatmul, auto kScratchBytes>
static constexpr Kernels table(const char* isa, int64_t stream_tokens, bool has_tiles = false) {
    return {
        .isa = isa,
        .pack = pack,
        .unpack_row = unpack_row,
        .quantize_rows = quantize_rows,
        .matmul_scratch_bytes = scratch_bytes<kScratchBytes>,
        .stream_tokens = stream_tokens,
        .has_tiles = has_tiles,
        .matmul = matmul<kMatmul>,
        .encode_blocks = encode_blocks,
        .fit_affine = fit_affine,
        .fit_symmetric = fit_symmetric,
        .fit_listed = fit_listed,
        .fit_codebook = fit_codebook,
        .choose_entries = choose_entries,
        .choose_lines = choose_lines,
    };
}

extern const Kernels kernels;
constinit const Kernels kernels =
    table<matmul_quantized, scratch_bytes_quantized>(CHASKI_TEXT(CHASKI_ISA), kStreamTokens);

#if defined(__AVX512VNNI__)
extern const Kernels kernels_amx;
constinit const Kernels kernels_amx = table<matmul_quantized_amx, scratch_bytes_quantized_amx>(
    CHASKI_TEXT(CHASKI_ISA) "_amx", kStreamTokens, true);
#elif defined(CHASKI_NEON)
extern const Kernels kernels_i8mm;
constinit const Kernels kernels_i8mm = table<neon_i8mm::matmul_quantized, neon_i8mm::scratch_bytes_quantized>(
    CHASKI_TEXT(CHASKI_ISA) "_i8mm", kI8mmStreamTokens);
#endif

}  // namespace chaski::CHASKI_ISA
