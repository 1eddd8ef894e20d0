// Writing and reading single cells of key/value storage, and rotating the keys in them. Compiled once per
// instruction set. The rounding of blocks is ggml's reference rule, https://github.com/ggml-org/ggml.

#include "storage.h"

#include <array>
#include <cmath>

#include "attention_kernel.h"
#include "integers.h"

namespace chaski::CHASKI_ISA {
namespace {

// A spread below this counts as none: its scale in half precision is zero.
constexpr float kNegligible = 1e-15f;

float inverse(float d) { return std::fabs(d) > kNegligible ? 1.0f / d : 0.0f; }

void write_half(std::byte* p, float x) {
    std::uint16_t lanes[kLanes];
    store_f16(lanes, splat(x));
    write(p, lanes[0]);
}

// The largest magnitude becomes level 127; halves round away from zero.
void encode_q8_0(const float* x, std::byte* block) {
    float largest = 0.0f;
    for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    const float d = largest / 127.0f;
    const float scale = inverse(d);
    write_half(block, d);
    for (int i = 0; i < 32; ++i) {
        const float level = x[i] * scale;
        float whole = std::trunc(level);
        if (std::fabs(level - whole) >= 0.5f) whole += level < 0.0f ? -1.0f : 1.0f;
        block[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(whole));
    }
}

// Writes the scale at which the first value of largest magnitude becomes level -extreme_level, whatever its
// sign. Returns the codes of levels: levels from -lowest to lowest - 1, plus `lowest`.
std::array<unsigned, 32> encode_levels(const float* x, float extreme_level, float lowest, std::byte* block) {
    float extreme = 0.0f;
    for (int i = 0; i < 32; ++i) {
        if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    }
    const float d = extreme / -extreme_level;
    const float scale = inverse(d);
    write_half(block, d);
    std::array<unsigned, 32> codes;
    for (int i = 0; i < 32; ++i) {
        const float level = std::trunc(x[i] * scale + (lowest + 0.5f));
        codes[i] = static_cast<unsigned>(std::fmin(2 * lowest - 1, std::fmax(0.0f, level)));
    }
    return codes;
}

void encode_q4_0(const float* x, std::byte* block) {
    const std::array<unsigned, 32> codes = encode_levels(x, 8.0f, 8.0f, block);
    for (int i = 0; i < 16; ++i) block[2 + i] = static_cast<std::byte>(codes[i] | codes[16 + i] << 4);
}

// The extreme lies a little outside of the levels, which leaves the least error of numbers of a normal
// distribution: 0.0292 of their squares, and 0.0304 with the extreme at level -4.
constexpr float kExtremeOfThreeBits = 4.2f;

void encode_q3_0(const float* x, std::byte* block) {
    const std::array<unsigned, 32> codes = encode_levels(x, kExtremeOfThreeBits, 4.0f, block);
    for (int n = 0; n < 3; ++n) {
        std::uint32_t unit = 0;
        for (int i = 0; i < 32; ++i) unit |= (codes[i] >> n & 1) << (i % 4 * 8 + i / 4);
        write(block + 2 + 4 * n, unit);
    }
}

// Writes one head as a row. `x` is readable up to a multiple of 16 elements.
void encode_row(DType type, const float* x, std::int64_t size, std::byte* row) {
    const std::int64_t bytes = find_format(type)->bytes;
    if (type == DType::Q8_0) {
        for (std::int64_t i = 0; i < size; i += 32, row += bytes) encode_q8_0(x + i, row);
    } else if (type == DType::Q4_0) {
        for (std::int64_t i = 0; i < size; i += 32, row += bytes) encode_q4_0(x + i, row);
    } else if (type == DType::Q3_0) {
        for (std::int64_t i = 0; i < size; i += 32, row += bytes) encode_q3_0(x + i, row);
    } else if (type == DType::F32) {
        std::memcpy(row, x, size * bytes);
    } else {
        for (std::int64_t i = 0; i < size; i += kLanes, row += kLanes * bytes) {
            std::uint16_t part[kLanes];
            if (type == DType::F16) store_f16(part, load_f32(x + i));
            if (type == DType::BF16) store_bf16(part, load_f32(x + i));
            std::memcpy(row, part, (size - i < kLanes ? size - i : kLanes) * bytes);
        }
    }
}

// Reads a row as floats, up to a multiple of 16 elements.
void decode_row(DType type, const std::byte* row, std::int64_t size, float* y) {
    with_type(type, [&](auto t) {
        if constexpr (t.value != DType::I16) {
            for (std::int64_t i = 0; i < size; i += kLanes)
                store_f32(y + i, load_elements<t.value>(row, i, size));
        }
    });
}

// Multiplies integers by their scale.
void dequantize_row(const std::byte* row, float scale, std::int64_t size, float* y) {
    for (std::int64_t i = 0; i < size; ++i) {
        y[i] = static_cast<float>(read<std::int16_t>(row + i * sizeof(std::int16_t))) * scale;
    }
}

// Calls f(offset in a row, offset in a panel for lane 0, unit, whether signs are flipped) for every unit of a
// row.
template <DType T, class F>
CHASKI_INLINE void for_units(std::int64_t size, const F& f) {
    constexpr BlockFormat format = *find_format(T);
    std::int64_t line = 0;
    for (std::int64_t block = 0; block < size / format.elements; ++block) {
        for (const Field& field : format.fields) {
            const int unit = key_unit(format, field);
            for (int at = 0; at < field.bytes; at += unit, line += kLanes * unit) {
                f(block * format.bytes + field.offset + at, line, unit,
                  field.transform == Transform::kFlipSign);
            }
        }
    }
}

void flip_signs(std::byte* bytes, int count) {
    for (int i = 0; i < count; ++i) bytes[i] ^= std::byte{0x80};
}

// Writes the rows of `count` consecutive cells of one panel, which are `stride` bytes apart. It goes line by
// line and touches each line of the panel once, however many of its lanes are written.
void put_rows(const KVStorage& storage, std::int64_t head, std::int64_t cell, const std::byte* rows,
              std::int64_t stride, std::int64_t count) {
    std::byte* panel = storage.panel(head, cell);
    const std::int64_t lane = cell % kLanes;
    with_type(storage.type, [&](auto type) {
        for_units<type.value>(storage.size, [&](std::int64_t from, std::int64_t line, int unit, bool flip) {
            std::byte* to = panel + line + lane * unit;
            for (std::int64_t i = 0; i < count; ++i, to += unit) {
                std::memcpy(to, rows + i * stride + from, unit);
                if (flip) flip_signs(to, unit);
            }
        });
    });
}

void get_row(const KVStorage& storage, std::int64_t head, std::int64_t cell, std::byte* row) {
    const std::byte* panel = storage.panel(head, cell);
    const std::int64_t lane = cell % kLanes;
    with_type(storage.type, [&](auto type) {
        for_units<type.value>(storage.size, [&](std::int64_t to, std::int64_t line, int unit, bool flip) {
            std::memcpy(row + to, panel + line + lane * unit, unit);
            if (flip) flip_signs(row + to, unit);
        });
    });
}

// Copies one head of `count` cells of one panel to as many cells of another panel.
void copy_lanes(const KVStorage& from, std::int64_t source, const KVStorage& to, std::int64_t target,
                std::int64_t head, std::int64_t count, std::byte* row) {
    if (count == kLanes) {
        std::memcpy(to.panel(head, target), from.panel(head, source), panel_bytes(from.type, from.size));
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
        get_row(from, head, source + i, row);
        put_rows(to, head, target + i, row, 0, 1);
    }
}

std::int64_t padded(std::int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

// Writes one head of `count` consecutive cells of one panel. `x` belongs to the first cell, and each next
// cell is `x_stride` further; `scratch` has cell_scratch_floats.
void write_heads(const KVStorage& storage, std::int64_t head, std::int64_t cell, std::int64_t count,
                 const float* x, std::int64_t x_stride, float* scratch) {
    const std::int64_t room = padded(storage.size);  // floats; a row takes no more
    for (std::int64_t i = 0; i < count; ++i, x += x_stride) {
        std::memmove(scratch, x, storage.size * sizeof(float));
        const bool is_direct = !storage.in_panels && storage.type != DType::I16;
        auto* row =
            is_direct ? storage.row(head, cell + i) : reinterpret_cast<std::byte*>(scratch + (i + 1) * room);
        if (storage.type == DType::I16) {
            storage.scales(head)[cell + i] =
                quantize_row(scratch, storage.size, !storage.in_panels, reinterpret_cast<std::int16_t*>(row));
        } else {
            encode_row(storage.type, scratch, storage.size, row);
        }
        if (!storage.in_panels && !is_direct) {
            std::memcpy(storage.row(head, cell + i), row, row_bytes(storage.type, storage.size));
        }
    }
    if (!storage.in_panels) return;
    const auto* rows = reinterpret_cast<const std::byte*>(scratch + room);
    const auto stride = static_cast<std::int64_t>(room * sizeof(float));
    if (count == kLanes) return put_rows(storage, head, cell, rows, stride, kLanes);
    put_rows(storage, head, cell, rows, stride, count);
}

void read_head(const KVStorage& storage, std::int64_t head, std::int64_t cell, float* y, std::byte* row) {
    const std::byte* from = storage.in_panels ? row : storage.row(head, cell);
    if (storage.in_panels) get_row(storage, head, cell, row);
    if (storage.type == DType::I16) return dequantize_row(from, storage.scales(head)[cell], storage.size, y);
    decode_row(storage.type, from, storage.size, y);
}

}  // namespace

void store_cells(const float* x, const KVStorage& storage, const std::int32_t* cells, std::int64_t count,
                 float* scratch) {
    const std::int64_t width = storage.heads * storage.size;
    for (std::int64_t i = 0; i < count;) {
        std::int64_t end = i + 1;
        while (end < count && cells[end] == cells[end - 1] + 1 && cells[end] % kLanes != 0) ++end;
        for (std::int64_t head = 0; head < storage.heads; ++head) {
            write_heads(storage, head, cells[i], end - i, x + i * width + head * storage.size, width,
                        scratch);
        }
        i = end;
    }
}

void load_cell(const KVStorage& storage, std::int64_t cell, float* y, float* scratch) {
    auto* row = reinterpret_cast<std::byte*>(scratch + padded(storage.size));
    for (std::int64_t head = 0; head < storage.heads; ++head, y += storage.size) {
        read_head(storage, head, cell, scratch, row);
        std::memcpy(y, scratch, storage.size * sizeof(float));
    }
}

void copy_cells(const KVStorage& from, const std::int32_t* sources, const KVStorage& to,
                const std::int32_t* targets, std::int64_t count, float* scratch) {
    const std::int64_t bytes = row_bytes(from.type, from.size);
    for (std::int64_t i = 0; i < count;) {
        const std::int64_t source = sources[i], target = targets[i];
        const bool is_aligned = source % kLanes == target % kLanes;
        std::int64_t end = i + 1;
        while (end < count && sources[end] == sources[end - 1] + 1 && targets[end] == targets[end - 1] + 1) {
            // Copies the lanes of one panel together, or one by one if their places differ.
            if (from.in_panels && (!is_aligned || sources[end] % kLanes == 0)) break;
            ++end;
        }
        const std::int64_t cells = end - i;
        for (std::int64_t head = 0; head < from.heads; ++head) {
            if (from.in_panels) {
                copy_lanes(from, source, to, target, head, cells, reinterpret_cast<std::byte*>(scratch));
            } else {
                std::memcpy(to.row(head, target), from.row(head, source), cells * bytes);
            }
            if (from.type == DType::I16) {
                std::memcpy(to.scales(head) + target, from.scales(head) + source, cells * sizeof(float));
            }
        }
        i = end;
    }
}

void rotate_cell(const KVStorage& storage, std::int64_t cell, const float* cos, const float* sin,
                 std::int64_t pairs, bool neox, std::int64_t block, float* scratch) {
    auto* row = reinterpret_cast<std::byte*>(scratch + padded(storage.size));
    for (std::int64_t head = 0; head < storage.heads; ++head) {
        read_head(storage, head, cell, scratch, row);
        if (block > 1) hadamard(scratch, storage.size, block, scratch);
        rope(scratch, cos, sin, 1, storage.size, pairs, neox, scratch);
        if (block > 1) hadamard(scratch, storage.size, block, scratch);
        write_heads(storage, head, cell, 1, scratch, 0, scratch);
    }
}

}  // namespace chaski::CHASKI_ISA
