// The functions in the table of kernels (kernels.h), one set per instruction set.
#pragma once

#include "kernels.h"
#include "matmul.h"
#include "variants.h"

namespace chaski::CHASKI_ISA {

void pack(DType type, const uint8_t* rows, int64_t row_stride, int64_t num_rows, int64_t k, uint8_t* panels,
          int64_t panel_begin, int64_t panel_end);
void unpack_row(const Matrix& w, int64_t row, float* out);
void quantize_rows(const float* x, int64_t n, int64_t k, const Activations& out);
float encode_blocks(DType type, const float* x, int64_t n, float limit, uint8_t* out);
void fit_affine(const SubBlocks& x, float top, const float* intervals, int64_t num_intervals, float* scales,
                float* minimums);
void fit_symmetric(const SubBlocks& x, float low, float high, const float* places, int64_t num_places,
                   float* scales);
void fit_listed(const SubBlocks& x, const float* values, const float* places, int64_t num_places,
                float* scales);
void fit_codebook(DType type, const SubBlocks& x, float* scales);
void choose_lines(const SubBlocks& x, float top, const Lines& lines, const ChosenLines& out);
void choose_entries(DType type, const SubBlocks& x, const float* scales, int64_t num_scales,
                    const ChosenEntries& out);

// The parts of matmul.
void matmul_quantized(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                      int64_t n, const Output& out, void* scratch, const Variant& variant);
void matmul_float(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                  const Output& out, void* scratch);
void matmul_bf16(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                 const Output& out, void* scratch);
// Products of at most kStreamTokens tokens, for types without super-blocks, with codebooks, and with
// super-blocks. They are in separate files because they take long to compile.
void stream_blocks(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                   const Output& out, void* scratch, const Variant& variant);
void stream_codebooks(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                      int64_t n, const Output& out, void* scratch, const Variant& variant);
void stream_super_blocks(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                         int64_t n, const Output& out, void* scratch, const Variant& variant);
// The same with two panels at a time, if kHasPairs.
void stream_super_pairs(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                        int64_t n, const Output& out, void* scratch, const Variant& variant);
int64_t scratch_bytes_quantized(int64_t k, int64_t n);
int64_t scratch_bytes_bf16(int64_t k, int64_t n);
// The same with tile registers. Only the instruction set that such processors also have is compiled with
// them.
void matmul_quantized_amx(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                          int64_t n, const Output& out, void* scratch, const Variant& variant);
int64_t scratch_bytes_quantized_amx(int64_t k, int64_t n);
int64_t scratch_bytes_float(int64_t n);

}  // namespace chaski::CHASKI_ISA
