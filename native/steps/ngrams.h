// Steps of embeddings of n-grams, whose rows are chosen by a hash of a token and of those before it.
#pragma once

#include <vector>

#include "kinds.h"

namespace chaski {

// y = token + 1, so that 0 means no token.
std::unique_ptr<Step> token_numbers(int dim, const std::int32_t* tokens, float* y);

// The hash of a token and of those before it. `multipliers` has one for each of these.
struct NgramHash {
    std::vector<std::uint64_t> multipliers;
    std::uint64_t size;
    std::uint64_t offset;
    std::int32_t separator;
};

// y = offset + (the exclusive or of token · multiplier) modulo size. `before` [row][width] has the numbers of
// the tokens before each token, the nearest first. A token before the last separator, or before the first
// token, counts as the separator.
std::unique_ptr<Step> hash_ngrams(int dim, NgramHash hash, std::int64_t width, const std::int32_t* tokens,
                                  const float* before, std::int32_t* y);

// y = sign(s) · sqrt(max(|s|, least)) for s = factor · (the sum of a · b, in order) of each head of a row.
std::unique_ptr<Step> rooted_dots(int dim, std::int64_t heads, std::int64_t size, float factor, float least,
                                  const float* a, const float* b, float* y);

}  // namespace chaski
