// The pooling of groups of tokens by a softmax over each channel (DeepSeek V4), with its rule of order.
//
// Positions are cut into groups of `ratio` from position 0 on. A channel of a token has a value c and a score
// z, to which the bias of the token's place in its group is added. The result of a token is
//
//   y = sum of exp(z_j) c_j / sum of exp(z_j), over the tokens j of its group up to itself
//
// and so the last token of a group has that of the whole group. With `overlaps`, a token has two values and
// scores: the second ones are for its own group, and the first ones for the next group, whose results also
// run over all tokens of the group before.
//
// A pool of tokens is the state (m, s, a), which starts with (z, 1, c) of its first token. Each further token
// changes it, in order of position:
//
//   n = max(m, z);   f = exp(m - n);   g = exp(z - n);   s := s f + g;   a := a f + g c;   m := n
//
// The result is a / s; two pools, the earlier of the group before, give (a f + b g) / (s f + t g) with
// f = exp(m - max) and g of the later one. All numbers are float32, and exp is that of the kernels. So a
// result depends on the tokens of its groups alone, wherever a sequence is cut.
//
// Between batches, `rows` has the values and scores of the tokens of the open chunk (gated_delta.h), and
// `states` has the pool at a chunk's boundary: of the open group, or with `overlaps` of the group before.
#pragma once

#include <vector>

#include "chunks.h"
#include "ops.h"

namespace chaski {

struct Pooling {
    const float* values;  // [token][inputs · channels], with inputs = 2 if groups overlap, else 1
    const float* scores;  // the same
    KVStorage states;     // [3][channels]
    KVStorage rows;       // [ring][2 · inputs · channels]: values, then scores
    float* y;             // [token][channels]
    std::int64_t ratio;
    bool overlaps;

    std::int64_t channels() const { return states.size; }
    std::int64_t width() const { return rows.size / 2; }
};

// An item is a piece of the channels of a segment.
class PoolingStep final : public Step {
   public:
    static constexpr std::int64_t kPiece = 64;

    // `bias` is [ratio][inputs · channels].
    PoolingStep(const Ops& ops, int tokens_dim, int segments_dim, const Pooling& job, std::vector<float> bias,
                const ChunkSegment* segments)
        : ops_(ops),
          tokens_dim_(tokens_dim),
          segments_dim_(segments_dim),
          job_(job),
          bias_(std::move(bias)),
          segments_(segments),
          pieces_((job.channels() + kPiece - 1) / kPiece) {}
    std::int64_t items(const Sizes& sizes) const override { return sizes[segments_dim_] * pieces_; }
    std::int64_t piece(const Sizes&, std::int64_t, int) const override { return 1; }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const override;
    void prepare(const Sizes& sizes) override {
        check_segments(segments_, sizes[segments_dim_], sizes[tokens_dim_], job_.rows.cells,
                       job_.states.cells);
    }

   private:
    struct Pool;

    void pool(const ChunkSegment& segment, std::int64_t channel, std::int64_t count) const;
    // Adds a token's input number `input` to a pool of the channels from `channel` on.
    void add(const ChunkSegment& segment, std::int64_t at, std::int64_t input, std::int64_t channel,
             Pool& pool) const;
    void write(const Pool& before, const Pool& own, float* y) const;
    void keep(const ChunkSegment& segment, std::int64_t channel, std::int64_t count) const;

    const Ops& ops_;
    const int tokens_dim_;
    const int segments_dim_;
    const Pooling job_;
    const std::vector<float> bias_;
    const ChunkSegment* segments_;
    const std::int64_t pieces_;
};

}  // namespace chaski
