// The generalized delta rule (RWKV 7, Peng et al. 2025; Kimi Linear, Kimi Team 2025): the operands of its
// kernel, and its rule of order.
//
// A head has a state S of key size x value size. Each row of S has its own decay, where the gated delta net
// (gated_delta.h) has one for all of S. With the vectors r, w, k, a, b of key size and v of value size:
//
//   S := diag(w) S + b (a S) + k v;   y = r S
//
// For each token, in order, and for each column j of S:
//
//   c := 0; for the rows i in ascending order:  c := fma(a_i, S_ij, c)
//   y := 0; for the rows i in ascending order:  S_ij := fma(b_i, c, fma(w_i, S_ij, k_i v_j))
//                                               y := fma(r_i, S_ij, y)
//
// Without a and b (RWKV 6, gated linear attention), S_ij := fma(w_i, S_ij, k_i v_j). All numbers are float32,
// rounded to nearest. A state passes from token to token, so a sequence can be cut anywhere. Lanes are
// columns, and no sum runs over lanes.
#pragma once

#include "ops.h"
#include "segment.h"

namespace chaski {

// Rows of a state in storage have `columns` elements, a multiple of 16.
struct GeneralizedDelta {
    const float* r;  // [token][head][key size]
    const float* w;
    const float* k;
    const float* a;  // null, and b too, for a rule without them
    const float* b;
    const float* v;  // [token][head][value size]
    float* y;
    KVStorage states;  // [head] [key size][columns]
    std::int64_t value_size;

    [[gnu::always_inline]] std::int64_t heads() const { return states.heads; }
    [[gnu::always_inline]] std::int64_t columns() const {
        return (value_size + kLanes - 1) / kLanes * kLanes;
    }
    [[gnu::always_inline]] std::int64_t key_size() const { return states.size / columns(); }
};

}  // namespace chaski
