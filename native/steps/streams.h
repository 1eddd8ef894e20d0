// Steps of several residual streams (hyper-connections).
#pragma once

#include "kinds.h"
#include "ops.h"

namespace chaski {

// y of stream o = sum over s, ascending, of weights[s][o] · x of stream s; the first product starts the sum.
// x is [row][streams][size], weights [row][streams][outputs], and y [row][outputs][size].
std::unique_ptr<Step> mix_streams(const Ops& ops, int dim, std::int64_t streams, std::int64_t outputs,
                                  std::int64_t size, const float* x, const float* weights, float* y);

// Makes a matrix of `size` rows nearly doubly stochastic (Sinkhorn and Knopp 1967): the softmax of each row,
// plus eps; then all columns are divided by their sums plus eps; then rows and columns, `iterations` - 1
// times. Sums are in ascending order.
std::unique_ptr<Step> sinkhorn(const Ops& ops, int dim, std::int64_t size, std::int64_t iterations, float eps,
                               const float* x, float* y);

}  // namespace chaski
