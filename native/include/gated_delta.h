// The gated delta net (Yang et al. 2024): the operands of its kernel, and its rule of order.
//
// A head has a state S of key size x value size. A token forgets a part of it, corrects what it has for the
// key k, and answers the query q. Token by token that is
//
//   S := exp(g) S;   S := S + k (beta (v - k S));   y = q S
//
// It is not computed like that. The numeric rule ("same answer"): a sequence is cut into chunks where a
// position is a multiple of kDeltaChunk, whoever computes. S is stored at these boundaries only, and for the
// tokens behind the last one k, g and the pseudo value u are. So one token, several, and a whole chunk follow
// the same formulas, of which a chunk makes matrix products. For the tokens i of a chunk that begins at b:
//
//   e_i = exp(g_b + ... + g_i);  d_ij = exp(g_j+1 + ... + g_i) for b <= j < i, and d_ii = exp(0)
//     each sum begins with 0 and takes one g after the other. Sums are never differences of longer ones.
//   r = fma(-e_i, k_i S, v_i);  for j = b to i - 1:  r = fma(-(d_ij (k_i k_j)), u_j, r);  u_i = beta_i r
//   y = e_i (q_i S);            for j = b to i:      y = fma(d_ij (q_i k_j), u_j, y)
//   behind the last token l of the chunk:  S := e_l S;  for j = b to l:  S := fma(k_j, d_lj u_j, S)
//
//   Products k S, q S, k_i k_j and q_i k_j begin with 0 and run along the key in ascending order, by fma. All is
//   float32, rounded to nearest; exp is that of vector_math.h.
//
// All sums run over tokens or over elements of a key, and none over lanes: a lane is a column of S, or a token
// j. So neither the length of vectors nor the cut into tiles, batches or threads changes a bit.
#pragma once

#include "ops.h"

namespace chaski {

// With 32 tokens, products within a chunk cost a quarter of those with the state (128 x 128), writing the
// state costs one part in 32 of reading it, and the rows are half as large as the state. With 64 prefill
// computes a tenth more, and rows take twice the memory; with 16 the state is written twice as often.
constexpr std::int64_t kDeltaChunk = 32;
// Rows that are kept of a sequence: of the open chunk and the one before, so that the last tokens can be
// dropped again. A token's row is at its position modulo this.
constexpr std::int64_t kDeltaRing = 2 * kDeltaChunk;

}  // namespace chaski
