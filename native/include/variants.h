// The variants of a matrix product: how far ahead it prefetches weights, and how much it unpacks at once. No
// variant changes a bit of a result, so each machine picks its fastest by measurement (variant_picks.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "matmul.h"

namespace chaski {

struct Variant {
    static constexpr std::int32_t kNextPanel = -1;

    const char* name;

    // Few tokens: whether weights are unpacked in registers or, as for many tokens, to memory first.
    bool in_registers = true;

    // Kernels that unpack in registers: the distance in bytes at which they prefetch, 0 for none. kNextPanel:
    // they prefetch the whole next panel, or the next two, during the pass of the last tokens.
    std::int32_t ahead = 0;
    bool to_first_level = false;  // else to the second-level cache
    bool in_pairs = false;        // whether tokens pass two panels at a time

    // Kernels that unpack to memory: the number of panels that share the tokens' data of a step of k, whether
    // all of these or a few at a time are unpacked before tokens pass, and the number of tokens that pass
    // before the next panels.
    std::int32_t group = 24;
    bool whole_group = false;
    std::int32_t token_block = 256;

    // Kernels with tile registers: whether super-blocks take three products of pieces, with more to unpack.
    bool three_products = false;
};

// Products with similar numbers of tokens share a choice. On every instruction set, the limit of kernels for
// few tokens is the end of a class: 12 tokens, 6, 3, or none.
struct TokenClass {
    const char* name;
    std::int64_t last;  // number of tokens
};
inline constexpr std::array kTokenClasses = {TokenClass{"1", 1},      TokenClass{"2-3", 3},
                                             TokenClass{"4-6", 6},    TokenClass{"7-12", 12},
                                             TokenClass{"13-32", 32}, TokenClass{"more", INT64_MAX}};

constexpr int token_class_of(std::int64_t n) {
    int index = 0;
    while (n > kTokenClasses[index].last) ++index;
    return index;
}

// The first variant of each list is used without measurements.
inline constexpr Variant kAloneVariants[] = {
    {.name = "none"},
    {.name = "1k-near", .ahead = 1024, .to_first_level = true},
    {.name = "2k-near", .ahead = 2048, .to_first_level = true},
    {.name = "4k-near", .ahead = 4096, .to_first_level = true},
    {.name = "8k-near", .ahead = 8192, .to_first_level = true},
    {.name = "2k", .ahead = 2048},
    {.name = "4k", .ahead = 4096},
    {.name = "8k", .ahead = 8192},
    {.name = "pairs", .in_pairs = true},
    {.name = "2k-near-pairs", .ahead = 2048, .to_first_level = true, .in_pairs = true},
    {.name = "2k-pairs", .ahead = 2048, .in_pairs = true},
};
inline constexpr std::size_t kAloneUnpaired = 8;
inline constexpr Variant kSomeVariants[] = {
    {.name = "panel", .ahead = Variant::kNextPanel},
    {.name = "none"},
    {.name = "2k-near", .ahead = 2048, .to_first_level = true},
    {.name = "4k-near", .ahead = 4096, .to_first_level = true},
    {.name = "8k", .ahead = 8192},
    {.name = "unpacked", .in_registers = false},
    {.name = "pairs", .ahead = Variant::kNextPanel, .in_pairs = true},
    {.name = "pairs-near", .ahead = Variant::kNextPanel, .to_first_level = true, .in_pairs = true},
};
inline constexpr std::size_t kSomeUnpaired = 6;
inline constexpr Variant kManyVariants[] = {
    {.name = "24x256"},
    {.name = "24x128", .token_block = 128},
    {.name = "24x256-whole", .whole_group = true},
    {.name = "12x128-whole", .group = 12, .whole_group = true, .token_block = 128},
    {.name = "three-products", .three_products = true},
};
inline constexpr std::size_t kManyWithoutTiles = 4;

// The variants for quantized weights of a type and tokens of a class, for kernels that unpack in registers up
// to `stream_tokens`. Variants with pairs come last. They serve one token with weights without super-blocks,
// except codebooks, whose lookups keep the processor busy. With super-blocks, they serve four or more tokens
// on instruction sets with 32 registers of a whole vector, on which up to twelve tokens use these kernels.
constexpr std::span<const Variant> variants_of(DType type, int token_class, std::int64_t stream_tokens,
                                               bool has_tiles) {
    const std::span<const Variant> alone = kAloneVariants, some = kSomeVariants, many = kManyVariants;
    const bool is_super = wants_super_blocks(type);
    if (kTokenClasses[token_class].last > stream_tokens) {
        return has_tiles && is_super ? many : many.first(kManyWithoutTiles);
    }
    if (token_class == 0 && !is_super && !has_codebook(type)) return alone;
    if (token_class < 2) return alone.first(kAloneUnpaired);
    return is_super && stream_tokens == kTokenClasses[3].last ? some : some.first(kSomeUnpaired);
}

}  // namespace chaski
