#include "rope.h"

#include <cmath>

namespace chaski {

std::unique_ptr<Step> rope_table(int dim, const std::int32_t* positions, RopeTurns turns, float* table) {
    return each_row(dim, [=, turns = std::move(turns)](std::int64_t i) {
        auto pairs = static_cast<std::int64_t>(turns.frequencies.size());
        const std::int32_t* position = positions + i * turns.width;
        float* cos = table + i * 2 * pairs;
        for (std::int64_t j = 0; j < pairs; ++j) {
            const std::int32_t at = position[turns.axes[j]];
            float angle = static_cast<float>(at - at % turns.block) * turns.frequencies[j];
            cos[j] = std::cos(angle) * turns.magnitude;
            cos[pairs + j] = std::sin(angle) * turns.magnitude;
        }
    });
}

std::unique_ptr<Step> hadamard_rows(const Ops& ops, int dim, std::int64_t width, std::int64_t block,
                                    const float* x, float* y) {
    return each_row(dim,
                    [=, &ops](std::int64_t i) { ops.hadamard(x + i * width, width, block, y + i * width); });
}

std::unique_ptr<Step> rotate_rows(const Ops& ops, int dim, const RopeRows& rope, std::int64_t heads,
                                  std::int64_t size, const float* x, float* y) {
    return each_row(dim, [=, &ops](std::int64_t i) {
        std::int64_t at = i * heads * size;
        ops.rope(x + at, rope.cos(i), rope.sin(i), heads, size, rope.pairs, rope.neox, y + at);
    });
}

}  // namespace chaski
