// Steps that copy, choose and join rows of float32. `width` is the number of elements in a row of x, unless
// stated otherwise.
#pragma once

#include "kinds.h"
#include "ops.h"

namespace chaski {

// Copies the rows of x that `indices` names.
std::unique_ptr<Step> copy_rows(int dim, std::int64_t width, const float* x, const std::int32_t* indices,
                                float* y);

// Copies the rows of x to the rows that `places` names.
std::unique_ptr<Step> scatter(int dim, std::int64_t width, const float* x, const std::int32_t* places,
                              float* y);

// Copies `width` elements, from `first` on, of each of a row's `groups` groups of `source_width` elements.
std::unique_ptr<Step> slice(int dim, std::int64_t groups, std::int64_t source_width, std::int64_t first,
                            std::int64_t width, const float* x, float* y);

// Copies the elements of each of a row's `groups` groups to the columns first, first + stride, ... of y.
std::unique_ptr<Step> concat_columns(int dim, std::int64_t groups, std::int64_t width,
                                     std::int64_t target_width, std::int64_t first, std::int64_t stride,
                                     const float* x, float* y);

// Averages every `count` rows of x, added up in order.
std::unique_ptr<Step> average_rows(const Ops& ops, int dim, std::int64_t width, std::int64_t count,
                                   const float* x, float* y);

// Interleaves the elements of every `count` rows of x into one row: [width][count].
std::unique_ptr<Step> space_to_depth(int dim, std::int64_t width, std::int64_t count, const float* x,
                                     float* y);

}  // namespace chaski
