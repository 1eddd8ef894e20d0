#include "ops.h"

namespace chaski {

std::size_t attention_scratch(std::int64_t rows, std::int64_t key_size, std::int64_t value_size) {
    // As the kernel's workspace takes it: row lengths rounded up to 16, each piece too.
    std::int64_t key = (key_size + 15) / 16 * 16;
    std::int64_t value = (value_size + 15) / 16 * 16;
    std::int64_t chunk = kAttentionChunk;
    std::int64_t floats = rows * (key + value + chunk) + chunk * (key + value) + 2 * ((rows + 15) / 16 * 16);
    return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace chaski
