// The gated delta net (Yang et al. 2024) and the state-space duality of Mamba 2 (Dao and Gu 2024): the
// operands of their kernel, and their rules of order.
//
// A head has a state S of key size x value size. A token decays S, corrects its value for the key k, and
// answers the query q. Token by token, the formulas are
//
//   S := exp(g) S;   S := S + k (beta (v - k S));   y = q S
//
// The kernels compute it differently. The numeric rule ("same answer"): every sequence is cut into chunks
// where a position is a multiple of kDeltaChunk. S is stored only at these boundaries; for the tokens after
// the last boundary, k, g and the pseudo value u are stored. So one token, several tokens, and a whole chunk
// follow the same formulas; a chunk computes them as matrix products. A full chunk stays open until the next
// token arrives, so that its last token can still be dropped and computed again. For the tokens i of a chunk
// that begins at b:
//
//   e_i = exp(g_b + ... + g_i);  d_ij = exp(g_j+1 + ... + g_i) for b <= j < i, and d_ii = exp(0)
//     each sum begins with 0 and adds one g after the other; sums are never differences of longer sums.
//   r = fma(-e_i, k_i S, v_i);  for j = b to i - 1:  r = fma(-(d_ij (k_i k_j)), u_j, r);  u_i = beta_i r
//   y = e_i (q_i S);            for j = b to i:      y = fma(d_ij (q_i k_j), u_j, y)
//     after the last token l of the chunk:  S := e_l S;  for j = b to l:  S := fma(k_j, d_lj u_j, S)
//
//   Products k S, q S, k_i k_j and q_i k_j begin with 0 and run along the key in ascending order, by fma. All
//   numbers are float32, rounded to nearest; exp is that of vector_math.h.
//
// Mamba 2 has the same formulas without the correction, S := S + k (beta v): key heads are its groups, q is
// C, k is B, v is x, beta is the time step dt, and g is A dt. Its rule is u_i = beta_i v_i, and y and S as
// above; at last y = fma(D, v_i, y).
//
// All sums run over tokens or over elements of a key, and no sum runs over lanes: a lane is a column of S, or
// a token j. So neither the vector length nor the division into tiles, batches or threads changes a bit.
#pragma once

#include "ops.h"

namespace chaski {

// With 32 tokens, one in eight products of a 128 x 128 head is within the chunk, and a state is written once
// per 32 reads. With 64 it is one in five, a tenth more work in total, and rows take twice the memory; with
// 16 the state is written twice as often.
constexpr std::int64_t kDeltaChunk = 32;
// Rows kept for a sequence: those of the open chunk and the one before, so that the last tokens can be
// dropped again. A token's row is at its position modulo this number.
constexpr std::int64_t kDeltaRing = 2 * kDeltaChunk;
// The number of columns of the state that are computed together.
constexpr std::int64_t kDeltaColumns = 64;

// The tokens [begin, end) of a sequence; the first one is at `position`. The sequence has its own cell for
// rows. `source` is the state at the boundary `since`, where the open chunk begins; that chunk may have any
// number of tokens so far, from none to all. The state of the last boundary that the tokens pass is written
// to `target`, which is 0 if they pass none.
struct ChunkSegment {
    std::int32_t begin;
    std::int32_t end;
    std::int32_t position;
    std::int32_t cell;
    std::int32_t source;
    std::int32_t target;
    std::int32_t since;

    [[gnu::always_inline]] std::int64_t end_position() const { return position + (end - begin); }
    // The start of the last token's chunk; the state there is the last one written.
    [[gnu::always_inline]] std::int64_t last_chunk() const {
        return (end_position() - 1) / kDeltaChunk * kDeltaChunk;
    }
    // The index of the token at a position.
    [[gnu::always_inline]] std::int64_t token(std::int64_t at) const { return begin + (at - position); }
};

// Consecutive groups of heads share a key head; or, if tiled, head h uses key head h modulo their number.
// Rows of values in storage have `columns` elements, a multiple of 16. All storage is float32.
struct GatedDelta {
    const float* q;  // [token][key head][key size]
    const float* k;
    const float* v;          // [token][head][value size]
    const float* log_decay;  // [token][head]
    const float* beta;
    float* y;              // [token][head][value size]
    KVStorage states;      // [head] [key size][columns]
    KVStorage keys;        // [key head] [ring panel][key size][16]: lanes are tokens
    KVStorage values;      // [head] [ring][columns]: pseudo values
    KVStorage log_decays;  // [head] [ring]
    std::int64_t value_size;
    bool is_tiled;
    const float* skip;  // [head]: D of Mamba 2; null for the gated delta net

    [[gnu::always_inline]] bool corrects() const { return skip == nullptr; }
    [[gnu::always_inline]] std::int64_t heads() const { return log_decays.heads; }
    [[gnu::always_inline]] std::int64_t key_heads() const { return keys.heads; }
    [[gnu::always_inline]] std::int64_t key_size() const { return keys.size / kDeltaRing; }
    [[gnu::always_inline]] std::int64_t columns() const { return values.size / kDeltaRing; }
    [[gnu::always_inline]] std::int64_t group() const { return heads() / key_heads(); }
    // Converts the number of a head among those of a key head to its number among all heads.
    [[gnu::always_inline]] std::int64_t head(std::int64_t key_head, std::int64_t index) const {
        return is_tiled ? index * key_heads() + key_head : key_head * group() + index;
    }
    [[gnu::always_inline]] const float* key_row(const float* x, std::int64_t token,
                                                std::int64_t key_head) const {
        return x + (token * key_heads() + key_head) * key_size();
    }
    // The columns of all heads of a key head are cut into blocks; each block belongs to one head.
    [[gnu::always_inline]] std::int64_t blocks() const {
        return group() * ((columns() + kDeltaColumns - 1) / kDeltaColumns);
    }
    // The place in the ring of the keys, pseudo values or decays of the chunk that begins at a position.
    [[gnu::always_inline]] float* rows(const KVStorage& of, std::int64_t head, const ChunkSegment& segment,
                                       std::int64_t chunk) const {
        return reinterpret_cast<float*>(of.row(head, segment.cell)) +
               chunk % kDeltaRing * (of.size / kDeltaRing);
    }
};

// Writes the keys and log decays of the tokens at the positions [begin, end) to their rows.
inline void store_delta_rows(const GatedDelta& job, const ChunkSegment& segment, std::int64_t key_head,
                             std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
        const std::int64_t chunk = at / kDeltaChunk * kDeltaChunk, index = at - chunk,
                           token = segment.token(at);
        const float* k = job.key_row(job.k, token, key_head);
        float* lane = job.rows(job.keys, key_head, segment, chunk) +
                      index / kLanes * job.key_size() * kLanes + index % kLanes;
        for (std::int64_t i = 0; i < job.key_size(); ++i) lane[i * kLanes] = k[i];
        for (std::int64_t i = 0; i < job.group(); ++i) {
            const std::int64_t head = job.head(key_head, i);
            job.rows(job.log_decays, head, segment, chunk)[index] = job.log_decay[token * job.heads() + head];
        }
    }
}

}  // namespace chaski
