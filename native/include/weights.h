// Reading a model's weights from files into packed memory, with all threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace chaski {

// One matrix to load: rows of the file at `offset` of the open file `descriptor` become `target`'s panels.
struct MatrixSource {
    int descriptor;
    std::int64_t offset;
    Matrix target;
    std::uint8_t* panels;
};

// Reads and packs. Throws std::runtime_error when a file is shorter than promised or cannot be read.
void load_matrices(ThreadPool& pool, const Kernels& kernels, const std::vector<MatrixSource>& sources);

}  // namespace chaski
