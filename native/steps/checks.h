// The checks of a batch before its computation.
#pragma once

#include <string>

#include "kinds.h"

namespace chaski {

// Checks that every index of an input buffer is in [0, limit).
class IndexCheckStep final : public SetupStep {
   public:
    IndexCheckStep(std::string name, int dim, const std::int32_t* indices, Extent limit)
        : name_(std::move(name)), dim_(dim), indices_(indices), limit_(limit) {}
    void prepare(const Sizes& sizes) override;

   private:
    const std::string name_;
    const int dim_;
    const std::int32_t* indices_;
    const Extent limit_;
};

// Checks that one dimension has `count` rows for each row of another.
class GroupCheckStep final : public SetupStep {
   public:
    GroupCheckStep(std::string name, int dim, int source_dim, std::int64_t count)
        : name_(std::move(name)), dim_(dim), source_dim_(source_dim), count_(count) {}
    void prepare(const Sizes& sizes) override;

   private:
    const std::string name_;
    const int dim_;
    const int source_dim_;
    const std::int64_t count_;
};

}  // namespace chaski
