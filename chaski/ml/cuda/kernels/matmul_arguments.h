// The arguments of the kernels for quantized matrices, in the order in which `operations/products.py` packs
// them.
#pragma once

#include "experts.h"

namespace chaski::CHASKI_ISA {

// A matrix and the place of its results.
struct Part {
    const uint8_t* panels;
    int64_t rows;
    float* y;
    const float* bias;
    const float* residual;
};

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
};
static_assert(sizeof(Matmul) == 168 + kExpertsBytes, "as a launch packs it");

}  // namespace chaski::CHASKI_ISA
