// The softmax of a row, with a group of 16 lanes.
#pragma once

#include "kernel.h"

namespace chaski::CHASKI_ISA {

// Only lane i % 16 reads and writes element i of a row. Sums are taken in the order of row sums.
CHASKI_INLINE void softmax(float* row, int64_t size) {
    float highest = -infinity(), total = 0.0f;
    for (int64_t i = lane(); i < size; i += kLanes) highest = row[i] > highest ? row[i] : highest;
    highest = max_lanes({highest});
    for (int64_t i = lane(); i < size; i += kLanes) {
        row[i] = exp(F32x16{row[i] - highest}).v;
        total = row[i] + total;
    }
    total = sum_lanes({total});
    for (int64_t i = lane(); i < size; i += kLanes) row[i] = row[i] / total;
}

}  // namespace chaski::CHASKI_ISA
