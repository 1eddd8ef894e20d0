// Kinds of steps, by the items into which their work is divided: rows, stretches of rows, or none.
#pragma once

#include <memory>
#include <utility>

#include "plan.h"

namespace chaski {

// A step over the rows of one run-time dimension.
class RowStep : public Step {
   public:
    explicit RowStep(int dim) : dim_(dim) {}
    std::int64_t items(const Sizes& sizes) const override { return sizes[dim_]; }

   protected:
    const int dim_;
};

// A step that computes nothing; its `prepare` checks the input.
class SetupStep : public Step {
   public:
    std::int64_t items(const Sizes&) const final { return 0; }
    void run(const Sizes&, std::int64_t, std::int64_t, std::byte*) const final {}
    void prepare(const Sizes& sizes) override = 0;
};

template <class F>
class EachRow final : public RowStep {
   public:
    EachRow(int dim, F f) : RowStep(dim), f_(std::move(f)) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override {
        for (std::int64_t row = begin; row < end; ++row) f_(row);
    }

   private:
    const F f_;
};

template <class F>
class EachStretch final : public Step {
   public:
    static constexpr std::int64_t kStretch = 2048;
    EachStretch(int dim, std::int64_t width, F f) : dim_(dim), width_(width), f_(std::move(f)) {}
    std::int64_t items(const Sizes& sizes) const override {
        return (sizes[dim_] * width_ + kStretch - 1) / kStretch;
    }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const override {
        std::int64_t last = sizes[dim_] * width_;
        std::int64_t stop = end * kStretch < last ? end * kStretch : last;
        f_(begin * kStretch, stop - begin * kStretch);
    }

   private:
    const int dim_;
    const std::int64_t width_;
    const F f_;
};

// Calls f(row) for every row.
template <class F>
std::unique_ptr<Step> each_row(int dim, F f) {
    return std::make_unique<EachRow<F>>(dim, std::move(f));
}

// Calls f(offset, count) for stretches of all rows, treating the rows of `width` independent elements as one
// long row.
template <class F>
std::unique_ptr<Step> each_stretch(int dim, std::int64_t width, F f) {
    return std::make_unique<EachStretch<F>>(dim, width, std::move(f));
}

}  // namespace chaski
