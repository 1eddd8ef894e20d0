// Measures the limits of this machine with the threads of a team (peaks.h).
#pragma once

#include <cstdint>

#include "peaks.h"
#include "thread_pool.h"

namespace chaski {

// Multiply-adds per second of all threads together; the best of several short runs.
double multiply_add_rate(ThreadPool& pool, Peaks::Loop loop);

// Bytes per second that all threads together read from `bytes` of memory in huge pages; the best of several
// passes. `bytes` should be far larger than the caches.
double read_bandwidth(ThreadPool& pool, const Peaks& peaks, std::int64_t bytes);

}  // namespace chaski
