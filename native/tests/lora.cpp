// Tests products with the narrow matrices of LoRA adapters.
#include "lora.h"

#include "comparison.h"

namespace chaski {
namespace {

// Values of a type, in panels, and zeros in the lanes after the last row.
std::vector<std::byte> panels_of(Random& random, DType type, std::int64_t rows, std::int64_t columns) {
    const std::int64_t size = type == DType::F32 ? 4 : 2;
    std::vector<std::byte> panels(num_panels(rows) * kLanes * columns * size);
    for (std::int64_t i = 0; i < num_panels(rows) * kLanes * columns; ++i) {
        const std::int64_t row = i / (kLanes * columns) * kLanes + i % kLanes;
        const float value = random.number(1.0f);
        const auto half = static_cast<std::uint16_t>(random.word() & 0xbbff);  // finite in both types
        if (row >= rows) continue;
        std::memcpy(panels.data() + i * size,
                    type == DType::F32 ? static_cast<const void*>(&value) : static_cast<const void*>(&half),
                    size);
    }
    return panels;
}

void compare_pair(Comparison& compare, DType type, std::int64_t rank, std::int64_t rows, std::int64_t columns,
                  std::int64_t n) {
    const std::string what = "lora of rank " + std::to_string(rank) + ", " + std::to_string(rows) + " x " +
                             std::to_string(columns) + ", " + std::to_string(n) + " rows, type " +
                             std::to_string(static_cast<int>(type));
    compare(what, [&](const Table& table) {
        Random random(rank * rows + columns + n);
        const auto a = panels_of(random, type, rank, columns), b = panels_of(random, type, rows, rank);
        const std::vector<float> x = random.numbers(n * columns, 2.0f);
        std::vector<float> y = random.numbers(n * rows, 3.0f);
        const std::int64_t width = num_panels(rank) * kLanes;
        std::vector<float> t(n * width);
        const Lora pair{rank, rows, columns, 1.0f, type, type, a.data(), b.data()};
        std::vector<LoraRow> all;
        for (std::int64_t i = 0; i < n; ++i) {
            all.push_back(
                {x.data() + i * columns, t.data() + i * width, y.data() + i * rows, random.number(2.0f)});
        }
        table.ops.lora_down(pair, all.data(), n, a.data());
        table.ops.lora_up(pair, 0, num_panels(rows), all.data(), n, b.data());
        y.insert(y.end(), t.begin(), t.end());
        return bytes_of(y);
    });
}

}  // namespace

void compare_lora(Comparison& compare) {
    for (DType type : {DType::F32, DType::F16, DType::BF16}) {
        for (std::int64_t n : {1, 2, 3, 4, 5, 9}) {
            compare_pair(compare, type, 16, 64, 128, n);
            compare_pair(compare, type, 7, 41, 67, n);
        }
        compare_pair(compare, type, 1, 1, 1, 1);
        compare_pair(compare, type, 40, 200, 510, 6);
    }
}

}  // namespace chaski
