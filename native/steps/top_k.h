// The largest elements of each row, in two steps, so that threads share a row.
//
// A row is cut into blocks, and an element belongs to one of 16 lanes of its block by its index modulo 16.
// The first step finds the maximum of every lane. The `count` largest elements are all in lanes whose maximum
// reaches the count-th largest maximum, so the second step searches only a few lanes.
#pragma once

#include "kinds.h"
#include "ops.h"

namespace chaski {

// The division of a row of `width` elements.
struct Blocks {
    explicit Blocks(std::int64_t width);

    std::int64_t width;
    std::int64_t size;   // of a block, a multiple of 16; the last one may be shorter
    std::int64_t count;  // of blocks

    std::int64_t lanes() const { return count * kLanes; }
    std::int64_t end(std::int64_t block) const {
        std::int64_t end = (block + 1) * size;
        return end < width ? end : width;
    }
};

// maxima[row][block][lane], for rows with a count above 0.
class MaximaStep final : public Step {
   public:
    MaximaStep(const Ops& ops, int dim, std::int64_t width, const float* x, const std::int32_t* counts,
               float* maxima)
        : ops_(ops), dim_(dim), blocks_(width), x_(x), counts_(counts), maxima_(maxima) {}
    std::int64_t items(const Sizes& sizes) const override { return sizes[dim_] * blocks_.count; }
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const Ops& ops_;
    const int dim_;
    const Blocks blocks_;
    const float* x_;
    const std::int32_t* counts_;  // [row]
    float* maxima_;
};

// y[row][2][max_k]: the counts[row] largest elements in descending order, equal ones by ascending index, and
// their indices. A row with a NaN yields only its first NaN. Elements after the last one are unchanged.
class TopKStep final : public RowStep {
   public:
    TopKStep(int dim, std::int64_t width, std::int64_t max_k, const float* x, const std::int32_t* counts,
             const float* maxima, float* y)
        : RowStep(dim), blocks_(width), max_k_(max_k), x_(x), counts_(counts), maxima_(maxima), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override;

   private:
    struct Element;
    class Best;

    // The first NaN of a row, if there is one.
    bool find_nan(const float* x, const float* maxima, Best& best) const;
    // `room` has one float for each lane.
    void find_top_k(const float* x, const float* maxima, float* room, Best& best) const;

    const Blocks blocks_;
    const std::int64_t max_k_;
    const float* x_;
    const std::int32_t* counts_;  // [row], 0 to max_k
    const float* maxima_;
    float* y_;
};

}  // namespace chaski
