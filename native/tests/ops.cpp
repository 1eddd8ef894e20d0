// Tests norms, elementwise operations, rotation, and the cells of key/value storage.
#include <algorithm>
#include <limits>

#include "comparison.h"

namespace chaski {
namespace {

constexpr std::int64_t kCounts[] = {1, 15, 16, 17, 100, 2048};

// work(table, a, b, c, y) is an operation on `count` elements. Inputs range from tiny numbers to overflow of
// exp.
template <class Work>
void compare_rows(Comparison& compare, const std::string& name, const Work& work) {
    for (std::int64_t count : kCounts) {
        for (float size : {1e-4f, 1.0f, 120.0f}) {
            compare(name + " of " + std::to_string(count), [&](const Table& table) {
                Random random(count);
                const std::vector<float> a = random.numbers(count, size), b = random.numbers(count, size),
                                         c = random.numbers(count, 1.0f);
                std::vector<float> y = c;
                work(table.ops, a.data(), b.data(), c.data(), count, y.data());
                return bytes_of(y);
            });
        }
    }
}

using In = const float*;

void compare_elements(Comparison& compare) {
    compare_rows(compare, "rms_norm", [](const Ops& ops, In a, In b, In, std::int64_t n, float* y) {
        ops.rms_norm(a, b, 1e-5f, n, y);
    });
    compare_rows(compare, "rms_norm without weight",
                 [](const Ops& ops, In a, In, In, std::int64_t n, float* y) {
                     ops.rms_norm(a, nullptr, 1e-5f, n, y);
                 });
    compare_rows(compare, "layer_norm", [](const Ops& ops, In a, In b, In c, std::int64_t n, float* y) {
        ops.layer_norm(a, b, c, 1e-5f, n, y);
    });
    const Elementwise* all = compare.tables()[0].ops.elementwise;
    for (int i = 0; all[i].name != nullptr; ++i) {
        compare_rows(compare, all[i].name, [i](const Ops& ops, In a, In b, In c, std::int64_t n, float* y) {
            const float *operands[] = {a, b, c}, parameters[] = {1.702f, 7.0f, 0.3f};
            ops.elementwise[i].apply(operands, parameters, n, y);
        });
    }
    compare_rows(compare, "scaled",
                 [](const Ops& ops, In a, In, In, std::int64_t n, float* y) { ops.scale(a, 0.3f, n, y); });
    compare_rows(compare, "sum",
                 [](const Ops& ops, In a, In b, In, std::int64_t n, float* y) { ops.add(a, b, n, y); });
    compare_rows(compare, "softmax",
                 [](const Ops& ops, In a, In, In, std::int64_t n, float* y) { ops.softmax(a, n, y); });
    compare_rows(compare, "sigmoid of a row",
                 [](const Ops& ops, In a, In, In, std::int64_t n, float* y) { ops.sigmoid(a, n, y); });
    compare_rows(compare, "exponentials", [](const Ops& ops, In a, In, In, std::int64_t n, float* y) {
        ops.exponentials(a, *std::max_element(a, a + n), n, y);
    });
    compare_rows(compare, "exponential_sum", [](const Ops& ops, In a, In, In, std::int64_t n, float* y) {
        const double sum = ops.exponential_sum(a, *std::max_element(a, a + n), n);
        std::memcpy(y, &sum, std::min<std::int64_t>(n, 2) * sizeof(float));
    });
    compare_rows(compare, "lane_maxima", [](const Ops& ops, In a, In, In, std::int64_t n, float* y) {
        float maxima[kLanes];
        ops.lane_maxima(a, n, maxima);
        std::memcpy(y, maxima, std::min<std::int64_t>(n, kLanes) * sizeof(float));
    });
    compare_rows(compare, "add_scaled", [](const Ops& ops, In a, In, In, std::int64_t n, float* y) {
        ops.add_scaled(y, a, 0.3f, n);
    });
}

void compare_rope(Comparison& compare) {
    constexpr std::int64_t kHeads = 3, kSize = 80;
    for (std::int64_t pairs : {5, 32, 40}) {
        for (bool neox : {false, true}) {
            compare("rope of " + std::to_string(pairs) + " pairs", [&](const Table& table) {
                Random random(pairs);
                const std::vector<float> x = random.numbers(kHeads * kSize, 4.0f),
                                         cos = random.numbers(pairs, 1.0f), sin = random.numbers(pairs, 1.0f);
                std::vector<float> y(x.size());
                table.ops.rope(x.data(), cos.data(), sin.data(), kHeads, kSize, pairs, neox, y.data());
                return bytes_of(y);
            });
        }
    }
}

void compare_hadamard(Comparison& compare) {
    for (std::int64_t block : {16, 32, 128, 512}) {
        compare("rotation in blocks of " + std::to_string(block), [&](const Table& table) {
            Random random(block);
            const std::vector<float> x = random.numbers(2 * block, 4.0f);
            std::vector<float> y(x.size());
            table.ops.hadamard(x.data(), 2 * block, block, y.data());
            return bytes_of(y);
        });
    }
}

bool holds_any_bits(DType type) { return !is_quantized(type) && type != DType::I16; }

// Arbitrary bits if the type can store them, including NaNs; else numbers of many sizes, zeros, and ties.
std::vector<float> cell_of(DType type, std::int64_t count) {
    Random random(static_cast<int>(type));
    std::vector<float> x(count);
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t bits = random.word();
        std::memcpy(&x[i], &bits, sizeof bits);
        if (!holds_any_bits(type))
            x[i] = i / 32 % 5 == 0 ? 0.0f : static_cast<float>(random.below(511) - 255);
    }
    return x;
}

// Writes 21 cells: a single one, part of a panel, a whole panel, and cells that are not consecutive.
void store_in_runs(const Ops& ops, const std::vector<float>& x, const KVStorage& storage, float* scratch) {
    const std::vector<std::vector<std::int32_t>> batches = {
        {16}, {17, 18, 20, 19}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
    for (const auto& cells : batches) {
        std::vector<float> rows;
        const std::int64_t width = storage.heads * storage.size;
        for (std::int32_t cell : cells) {
            rows.insert(rows.end(), x.begin() + cell * width, x.begin() + (cell + 1) * width);
        }
        ops.store(rows.data(), storage, cells.data(), static_cast<std::int64_t>(cells.size()), scratch);
    }
}

Bytes use_storage(const Table& table, DType type, bool in_panels, bool is_rotated) {
    constexpr std::int64_t kCells = 21, kHeads = 2, kSize = 352;
    KVStorage storage{nullptr, kCells, kHeads, kSize, type, in_panels};
    Bytes memory(kHeads * storage.head_bytes() + kStorageSlack);
    storage.data = memory.data();
    const std::vector<float> x = cell_of(type, kCells * kHeads * kSize);
    std::vector<float> scratch(cell_scratch_floats(storage)), y(x.size());
    store_in_runs(table.ops, x, storage, scratch.data());
    Random random(3);
    const std::vector<float> cos = random.numbers(20, 1.0f), sin = random.numbers(20, 1.0f);
    if (is_rotated) {
        const std::int64_t block = is_quantized(type) ? 32 : 1;
        table.ops.rotate(storage, 5, cos.data(), sin.data(), 20, true, block, scratch.data());
    }
    for (std::int64_t cell = 0; cell < kCells; ++cell)
        table.ops.load(storage, cell, y.data() + cell * kHeads * kSize, scratch.data());
    const Bytes read = bytes_of(y);
    memory.insert(memory.end(), read.begin(), read.end());
    return memory;
}

void compare_storage(Comparison& compare) {
    for (DType type :
         {DType::F32, DType::F16, DType::BF16, DType::I16, DType::Q8_0, DType::Q4_0, DType::Q3_0}) {
        for (bool in_panels : {false, true}) {
            compare(std::string("cells of ") + find_format(type)->name,
                    [&](const Table& table) { return use_storage(table, type, in_panels, false); });
            // Rotating adds NaNs, and the processor chooses which one results.
            if (holds_any_bits(type)) continue;
            compare(std::string("rotated cells of ") + find_format(type)->name,
                    [&](const Table& table) { return use_storage(table, type, in_panels, true); });
        }
    }
}

}  // namespace

void compare_ops(Comparison& compare) {
    compare_elements(compare);
    compare_rope(compare);
    compare_hadamard(compare);
    compare_storage(compare);
}

}  // namespace chaski
