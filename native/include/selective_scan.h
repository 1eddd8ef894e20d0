// The selective scan of Mamba (Gu and Dao 2023): the operands of its kernel, and its rule of order.
//
// A channel has a state S of `state_size` numbers, and its own decays. For each token, in order, and for the
// numbers n of the state in ascending order:
//
//   S_n := fma(exp(dt a_n), S_n, (dt x) b_n);   y := fma(S_n, c_n, y), which begins with 0
//
// All numbers are float32, rounded to nearest; exp is that of the kernels. A state passes from token to
// token, so a sequence can be cut anywhere. Lanes are channels, and no sum runs over lanes.
#pragma once

#include "ops.h"
#include "segment.h"

namespace chaski {

struct SelectiveScan {
    const float* x;    // [token][channel]
    const float* dt;   // [token][channel]
    const float* b;    // [token][state]
    const float* c;    // [token][state]
    const float* a;    // [state][channel]
    float* y;          // [token][channel]
    KVStorage states;  // [state] [channel]

    [[gnu::always_inline]] std::int64_t channels() const { return states.size; }
    [[gnu::always_inline]] std::int64_t state_size() const { return states.heads; }
};

}  // namespace chaski
