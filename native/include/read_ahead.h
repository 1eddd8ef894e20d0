// Reading weights into the caches while nothing can be computed yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thread_pool.h"

namespace chaski {

// Reads stretches of memory into the caches, one after the other, from byte number `begin` of all of them up
// to `end`, with all threads of a team. It ends earlier when there is something to read from `descriptor`, or
// when its writers are gone. Returns the number of the first byte that was not read.
std::int64_t read_stretches_ahead(ThreadPool& pool, const std::vector<std::span<const std::byte>>& stretches,
                                  std::int64_t begin, std::int64_t end, int descriptor);

}  // namespace chaski
