// The checks of all bindings for values from Python.
#pragma once

#include <stdexcept>
#include <string>

#include "matmul.h"

namespace chaski {

inline void require(bool condition, const std::string& what) {
    if (!condition) throw std::invalid_argument(what);
}

// The layout of a type of weights, by its number in GGUF.
inline const BlockFormat& format_of(int type) {
    const BlockFormat* format = find_format(static_cast<DType>(type));
    require(format != nullptr && !is_only_stored(*format),
            "type " + std::to_string(type) + " has no kernels");
    return *format;
}

inline void require_matrix(int type, std::int64_t rows, std::int64_t k) {
    const int elements = format_of(type).elements;
    require(rows > 0 && k > 0 && k % elements == 0, "matrix: " + std::to_string(rows) + " x " +
                                                        std::to_string(k) + " does not fit blocks of " +
                                                        std::to_string(elements));
}

}  // namespace chaski
