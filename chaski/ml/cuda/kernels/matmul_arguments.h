// The arguments of the kernels for quantized matrices, in the order in which `operations/products.py` packs
// them.
#pragma once

#include "experts.h"
#if defined(CHASKI_FORMULA)
#include "quantize.h"
#elif defined(CHASKI_PAIRS)
#include "store.h"
#endif

namespace chaski::CHASKI_ISA {

// A matrix and the place of its results.
struct Part {
    const uint8_t* panels;
    int64_t rows;
    float* y;
    const float* bias;
    const float* residual;
};

#if defined(CHASKI_FORMULA)
// An elementwise operation of the results of all CHASKI_OPERANDS parts, instead of these results: see tail.h.
struct Tail {
    float parameters[2];
    float* y;  // or null
    Quantized quantized;
    uint32_t* arrivals;  // [row][256 columns] of the result; zeros before and after
};
#elif defined(CHASKI_PAIRS)
// What happens to the results, which are heads of queries, keys and values: see tail.h.
struct Tail {
    const int32_t* cells;
    const float* angles;  // [token][2][pairs]
    float* queries;       // turned
    Storage keys;
    Storage values;
    int64_t pairs;       // of heads, at most
    uint32_t* arrivals;  // [token][part][pair of heads]; zeros before and after
};
#endif

#if defined(CHASKI_ROW)
// The row of floats whose RMS norm is multiplied instead of rounded activations.
struct NormedRow {
    const float* x;
    const float* weight;
    float eps;
};
#endif

// Several matrices of one format that multiply the same activations; unused parts have no rows.
struct Matmul {
    Part parts[3];
    int64_t k;
    const int8_t* values;
    const float* scales;
    const int16_t* sums;
    const SuperScale* supers;
    Count n;
    [[no_unique_address]] Experts experts;
#if defined(CHASKI_FORMULA) || defined(CHASKI_PAIRS)
    Tail tail;
#endif
#if defined(CHASKI_ROW)
    NormedRow normed;
#endif
};
#if !defined(CHASKI_FORMULA) && !defined(CHASKI_PAIRS) && !defined(CHASKI_ROW)
static_assert(sizeof(Matmul) == 168 + kExpertsBytes, "as a launch packs it");
#endif

}  // namespace chaski::CHASKI_ISA
