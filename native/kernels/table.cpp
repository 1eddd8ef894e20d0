// The table of kernels of this instruction set.
#include "entry_points.h"
#include "kernels.h"

#define CHASKI_TEXT_OF(name) #name
#define CHASKI_TEXT(name) CHASKI_TEXT_OF(name)

namespace chaski::CHASKI_ISA {

template <auto kQuantized>
static void matmul(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                   const Output& out, void* scratch) {
    const auto half = is_quantized(w.type) ? kQuantized : matmul_float;
    half(w, panel_begin, panel_end, x, n, out, scratch);
}

template <auto kQuantized>
static int64_t scratch_bytes(const Matrix& w, int64_t n) {
    return is_quantized(w.type) ? kQuantized(w.k, n) : scratch_bytes_float(n);
}

extern const Kernels kernels;
const Kernels kernels = {
    .isa = CHASKI_TEXT(CHASKI_ISA),
    .pack = pack,
    .unpack_row = unpack_row,
    .quantize_rows = quantize_rows,
    .matmul_scratch_bytes = scratch_bytes<scratch_bytes_quantized>,
    .matmul = matmul<matmul_quantized>,
};

#if defined(__AVX512VNNI__)
extern const Kernels kernels_amx;
const Kernels kernels_amx = {
    .isa = CHASKI_TEXT(CHASKI_ISA) "_amx",
    .pack = pack,
    .unpack_row = unpack_row,
    .quantize_rows = quantize_rows,
    .matmul_scratch_bytes = scratch_bytes<scratch_bytes_quantized_amx>,
    .matmul = matmul<matmul_quantized_amx>,
};
#endif

}  // namespace chaski::CHASKI_ISA
