// The table of kernels of one instruction set.
#pragma once

#include <cstdint>

#include "matmul.h"
#include "variants.h"

namespace chaski {

// The types that `encode_blocks` can write.
inline constexpr DType kEncodable[] = {DType::F32,  DType::F16,  DType::BF16, DType::Q4_0, DType::Q4_1,
                                       DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::Q1_0, DType::NVFP4};

// `count` sub-blocks of 8, 16 or 32 elements whose scales are wanted. weights: the share of each element in
// the error; null for a default by magnitude.
struct SubBlocks {
    const float *values, *weights;
    int64_t count;
    int elements;
};

// Lines `scale * level - minimum` for each sub-block: scales and minimums are (count, sub-blocks), and each
// scale of a sub-block may have each of its minimums.
struct Lines {
    const float *scales, *minimums;
    int64_t count;
};

// The chosen lines of sub-blocks: their numbers, count * scale + minimum; the levels of the elements, and
// kLineSums sums over the elements: of error, weight, weight * x, weight * level, weight * level * level,
// weight * level * x.
inline constexpr int kLineSums = 6;
struct ChosenLines {
    uint8_t *choices, *levels;
    float* sums;
};

// The chosen entries of sub-blocks: the numbers of the best scales; one entry for each group of 8 elements,
// or of 4 with IQ3; for each 8 elements a bit for each negative one, or with IQ1 one byte that is 1 if the
// delta is negative; and kEntrySums sums over the elements: of weight * level * level and of weight * level *
// x.
inline constexpr int kEntrySums = 2;
struct ChosenEntries {
    uint8_t* choices;
    uint16_t* entries;
    uint8_t* signs;
    float* sums;
};

struct Kernels {
    const char* isa;

    // Reorders rows of a file into panels panel_begin..panel_end-1 of `panels` (the address of panel 0).
    // `rows` is the address of row 0, row_stride the bytes from one row to the next. Lanes past the last row
    // repeat it.
    void (*pack)(DType type, const uint8_t* rows, int64_t row_stride, int64_t num_rows, int64_t k,
                 uint8_t* panels, int64_t panel_begin, int64_t panel_end);

    // Dequantizes one row, exactly: k floats.
    void (*unpack_row)(const Matrix& w, int64_t row, float* out);

    // Fills values, scales and sums of `out` from x [n][k]; k is a multiple of 32.
    void (*quantize_rows)(const float* x, int64_t n, int64_t k, const Activations& out);

    // Upper limit of the scratch bytes, 64-byte aligned, that one thread's matmul needs for n tokens.
    int64_t (*matmul_scratch_bytes)(const Matrix& w, int64_t n);

    // Up to this many tokens, quantized weights are unpacked in registers.
    int64_t stream_tokens;

    // True if products of more tokens use tile registers.
    bool has_tiles;

    // Computes the rows of panels panel_begin..panel_end-1 for n tokens. `variant` is one of `variants_of`
    // their class; float matrices have no variants.
    void (*matmul)(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                   const Output& out, void* scratch, const Variant& variant);

    // Encodes n floats, in whole blocks, as one of kEncodable. Returns the largest magnitude; if it is above
    // `limit` or NaN, `out` is incomplete.
    float (*encode_blocks)(DType type, const float* x, int64_t n, float limit, uint8_t* out);

    // Finds scales and minimums for levels 0 to top, by grids of `intervals`.
    void (*fit_affine)(const SubBlocks& x, float top, const float* intervals, int64_t num_intervals,
                       float* scales, float* minimums);

    // Finds scales for the whole levels low to high. It tries each of `places` as the level of the largest
    // magnitude.
    void (*fit_symmetric)(const SubBlocks& x, float low, float high, const float* places, int64_t num_places,
                          float* scales);

    // The same for sixteen ascending `values` as the levels.
    void (*fit_listed)(const SubBlocks& x, const float* values, const float* places, int64_t num_places,
                       float* scales);

    // Finds scales of sub-blocks of 16 or 32 elements for a type with a codebook. The weights are needed.
    void (*fit_codebook)(DType type, const SubBlocks& x, float* scales);

    // Finds the best of `num_scales` scales of each sub-block, and the entries of a type's codebook for it.
    // scales: (num_scales, sub-blocks).
    void (*choose_entries)(DType type, const SubBlocks& x, const float* scales, int64_t num_scales,
                           const ChosenEntries& out);

    // Finds the best of `lines` for the levels 0 to top of each sub-block. The weights are needed.
    void (*choose_lines)(const SubBlocks& x, float top, const Lines& lines, const ChosenLines& out);
};

}  // namespace chaski
