// Reads weights into the caches while no work can be computed yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thread_pool.h"

namespace chaski {

// Reads stretches of memory into the caches, one after the other, with all threads of a team. `begin` and
// `end` count the bytes of all stretches. It stops early when `descriptor` becomes readable, or when its
// writers have closed it. Returns the number of the first byte that was not read.
std::int64_t read_stretches_ahead(ThreadPool& pool, const std::vector<std::span<const std::byte>>& stretches,
                                  std::int64_t begin, std::int64_t end, int descriptor);

}  // namespace chaski
