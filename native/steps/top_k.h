// The largest elements of each row, in two steps, so that threads share a row.
//
// A row is cut into blocks, and an element belongs to one of 16 lanes of its block by its remainder by 16.
// The first step finds the largest of every lane. At least as many elements are among the `count` largest as
// lanes reach the count-th largest of these, so the second step looks into few lanes only.
#pragma once

#include "kinds.h"
#include "ops.h"

namespace chaski {

// How a row of `width` elements is cut.
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

// maxima[row][block][lane], of rows of which any element is wanted.
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
// their indices. A row with NaN gives its first one alone. Elements after the last one stay as they were.
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
    // `room` is for as many floats as there are lanes.
    void find_top_k(const float* x, const float* maxima, float* room, Best& best) const;

    const Blocks blocks_;
    const std::int64_t max_k_;
    const float* x_;
    const std::int32_t* counts_;  // [row], 0 to max_k
    const float* maxima_;
    float* y_;
};

}  // namespace chaski
