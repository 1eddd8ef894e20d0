// The limits of this machine, measured on the threads of a team (peaks.h).
#pragma once

#include <cstdint>

#include "peaks.h"
#include "thread_pool.h"

namespace chaski {

// Multiply-adds per second of all threads together, the best of some short runs.
double multiply_add_rate(ThreadPool& pool, Peaks::Loop loop);

// Bytes per second that all threads together read from `bytes` of memory in huge pages, the best of some
// passes. It should be far more than the caches hold.
double read_bandwidth(ThreadPool& pool, const Peaks& peaks, std::int64_t bytes);

}  // namespace chaski
