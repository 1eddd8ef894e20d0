// The attention kernel of one instruction set; what it computes is said in ops.h.
#pragma once

#include "ops.h"

namespace chaski::CHASKI_ISA {

void attention(const Attention& job, Tile tile, std::int64_t kv_head, std::byte* scratch);

}  // namespace chaski::CHASKI_ISA
