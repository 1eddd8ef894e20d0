// Weight types and their memory layout: the file's blocks, and the panels that kernels read.
//
// A *panel* holds 16 rows of a matrix. Inside it, unit by unit, the bytes of the 16 rows are interleaved:
//
//   file (row major)            row 0: |block 0|block 1|...   row 1: |block 0|block 1|...
//   panel                       |block 0 of 16 rows|block 1 of 16 rows|...
//   block of 16 rows            |field a|field b|...                (order of `fields` below)
//   field, unit of 4 bytes      |row 0 bytes 0-3|row 1 bytes 0-3|...|row 15 bytes 0-3|row 0 bytes 4-7|...
//
// So one 64-byte line holds four consecutive code bytes of each of 16 rows: a vector of 16 dword lanes where
// lane = row. Multiplying it by four activations, broadcast to all lanes, needs neither shuffles nor
// horizontal sums. Fields are in the order in which kernels read them, and units that are used together
// alternate (`with`). So kernels read a panel at ascending addresses, which suits hardware prefetchers: one
// core of a Zen 4 reads 28 GB/s in this order, but 8 GB/s with the fields of Q6_K in the file's order.
//
//   Q6_K, a half          |high bits, unit 0|low bits, unit 0|low bits, unit 8|high bits, unit 1|low bits,
//   ...
//
// The reordering is lossless, and a panel takes 16 times the bytes of a row, rounded up to 64.
//
// A line of F16 has 32 bytes, half a cache line. Its panels are interleaved in pairs, so that one stream of
// memory feeds two sums that do not wait for each other:
//
//   F16                  |rows 0-15, k = 0|rows 16-31, k = 0|rows 0-15, k = 1|rows 16-31, k = 1|...
#pragma once

#include <cstddef>
#include <cstdint>

namespace chaski {

inline constexpr int kLanes = 16;  // rows of a panel

// The numbers are those of the GGUF file format.
enum class DType : int {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I16 = 25,  // only for keys and values
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
    Q3_0 = 100,  // only for keys and values, with a number that no file has
};

// The change that packing makes to the bytes of a field in addition to moving them; each is its own inverse
// or a permutation.
enum class Transform : uint8_t {
    kNone,
    kFlipSign,     // signed byte to offset binary: x ^ 0x80
    kSpreadBits,   // in each 4 bytes, one bit per element: the bit of element 4 i + b moves to bit 8 b + i
    kSpreadPairs,  // in each 4 bytes, two bits per element: those of element 4 i + b move to bit 8 b + 2 i
    kSplitWords,   // in each 8 bytes: the low bytes of four 16-bit numbers, then their high bytes
};

// `bytes` at `offset` of the file's block struct, moved in units of `unit` bytes.
struct Field {
    int offset = 0;
    int bytes = 0;
    int unit = 0;
    Transform transform = Transform::kNone;
    bool alternates = false;  // its units alternate with those of the previous field, of the same number
};
constexpr Field with(Field field) {
    field.alternates = true;
    return field;
}

inline constexpr int kMaxFields = 8;

struct BlockFormat {
    DType type;
    const char* name;
    int elements;                   // per block
    int bytes;                      // per block
    Field fields[kMaxFields] = {};  // entries without bytes are unused
};

inline constexpr BlockFormat kFormats[] = {
    // BF16 in pairs along k, as products of bf16 need them; a panel with odd k ends with zeros.
    {DType::F32, "F32", 1, 4, {{0, 4, 4}}},
    {DType::F16, "F16", 1, 2, {{0, 2, 2}}},
    {DType::BF16, "BF16", 1, 2, {{0, 2, 4}}},
    // d | 16 bytes of nibbles
    {DType::Q4_0, "Q4_0", 32, 18, {{2, 16, 4}, {0, 2, 2}}},
    // d m | nibbles
    {DType::Q4_1, "Q4_1", 32, 20, {{4, 16, 4}, {0, 2, 2}, {2, 2, 2}}},
    // d | 32 high bits | nibbles
    {DType::Q5_0, "Q5_0", 32, 22, {{6, 16, 4}, {2, 4, 4, Transform::kSpreadBits}, {0, 2, 2}}},
    // d m | 32 high bits | nibbles
    {DType::Q5_1, "Q5_1", 32, 24, {{8, 16, 4}, {4, 4, 4, Transform::kSpreadBits}, {0, 2, 2}, {2, 2, 2}}},
    // d | 32 signed bytes
    {DType::Q8_0, "Q8_0", 32, 34, {{2, 32, 4, Transform::kFlipSign}, {0, 2, 2}}},
    // 16 scales and mins of 4 bits | 64 bytes of 2-bit codes | d dmin
    {DType::Q2_K, "Q2_K", 256, 84, {{80, 2, 2}, {82, 2, 2}, {0, 16, 4}, {16, 64, 4}}},
    // 256 high bits | 64 bytes of 2 low bits, in halves | 16 scales of 6 bits | d
    {DType::Q3_K, "Q3_K", 256, 110, {{96, 12, 4}, {108, 2, 2}, {0, 32, 4}, with({32, 32, 4}), {64, 32, 4}}},
    // d dmin | 8 scales and mins of 6 bits | nibbles
    {DType::Q4_K, "Q4_K", 256, 144, {{0, 2, 2}, {2, 2, 2}, {4, 12, 4}, {16, 128, 4}}},
    // d dmin | 8 scales and mins of 6 bits | 256 high bits | nibbles
    {DType::Q5_K,
     "Q5_K",
     256,
     176,
     {{0, 2, 2}, {2, 2, 2}, {4, 12, 4}, {16, 32, 4}, with({48, 32, 4}), {80, 96, 4}}},
    // 128 bytes of 4 low bits | 64 bytes of 2 high bits | 16 signed scales | d
    {DType::Q6_K,
     "Q6_K",
     256,
     210,
     {{192, 16, 4},
      {208, 2, 2},
      {128, 32, 4},
      with({0, 32, 4}),
      with({32, 32, 4}),
      {160, 32, 4},
      with({64, 32, 4}),
      with({96, 32, 4})}},
    // d | nibbles, index into a table
    {DType::IQ4_NL, "IQ4_NL", 32, 18, {{2, 16, 4}, {0, 2, 2}}},
    // d | 8 times 2 high bits of scales | 8 times 4 low bits | nibbles, index into a table
    {DType::IQ4_XS, "IQ4_XS", 256, 136, {{0, 2, 2}, {2, 2, 2}, {4, 4, 4}, {8, 128, 4}}},
    // exponent | nibbles, index into a table
    {DType::MXFP4, "MXFP4", 32, 17, {{1, 16, 4}, {0, 1, 1}}},
    // 4 scales of 8 bits | nibbles, index into a table
    {DType::NVFP4, "NVFP4", 64, 36, {{0, 4, 4}, {4, 32, 4}}},
    // d | 128 bits
    {DType::Q1_0, "Q1_0", 128, 18, {{2, 16, 4, Transform::kSpreadBits}, {0, 2, 2}}},
    // d | 64 codes of 2 bits
    {DType::Q2_0, "Q2_0", 64, 18, {{2, 16, 4, Transform::kSpreadPairs}, {0, 2, 2}}},
    // 48 bytes of 5 digits of base 3 | 4 bytes of 4 digits | d
    {DType::TQ1_0, "TQ1_0", 256, 54, {{52, 2, 2}, {0, 48, 4}, {48, 4, 4}}},
    // 64 bytes of 2-bit codes | d
    {DType::TQ2_0, "TQ2_0", 256, 66, {{64, 2, 2}, {0, 64, 4}}},
    // In the following types, an index selects an entry of a codebook (codebooks.h).
    // d | 32 low bytes of indices | 8 times 4 times 3 high bits, a scale of 3 bits, a sign
    {DType::IQ1_S, "IQ1_S", 256, 50, {{0, 2, 2}, {34, 16, 2}, {2, 32, 4}}},
    // 32 low bytes of indices | 32 times 3 high bits, a sign | 16 scales of 3 bits, and d in the rest
    {DType::IQ1_M, "IQ1_M", 256, 56, {{48, 8, 2}, {32, 16, 4}, {0, 32, 4}}},
    // d | 8 times 4 indices, 4 times 7 signs, a scale of 4 bits
    {DType::IQ2_XXS, "IQ2_XXS", 256, 66, {{0, 2, 2}, {2, 64, 4}}},
    // d | 32 times an index of 9 bits, 7 signs | 16 scales of 4 bits
    {DType::IQ2_XS, "IQ2_XS", 256, 74, {{0, 2, 2}, {66, 8, 4}, {2, 64, 4, Transform::kSplitWords}}},
    // d | 32 low bytes of indices | 256 signs | 32 times 2 high bits of indices | 16 scales of 4 bits
    {DType::IQ2_S, "IQ2_S", 256, 82, {{0, 2, 2}, {74, 8, 4}, {66, 8, 4}, {2, 32, 4}, with({34, 32, 4})}},
    // d | 64 indices | 8 times 4 times 7 signs, a scale of 4 bits
    {DType::IQ3_XXS, "IQ3_XXS", 256, 98, {{0, 2, 2}, {66, 32, 4}, {2, 64, 4}}},
    // d | 64 low bytes of indices | 64 high bits of indices | 256 signs | 8 scales of 4 bits
    {DType::IQ3_S, "IQ3_S", 256, 110, {{0, 2, 2}, {106, 4, 4}, {66, 8, 4}, {74, 32, 4}, {2, 64, 4}}},
};

// Formats of keys and values alone.
inline constexpr BlockFormat kStoredFormats[] = {
    // Integers in pairs, with a scale for each head of a cell (KVStorage, ops.h).
    {DType::I16, "I16", 2, 4, {{0, 4, 4}}},
    // d | three units of 4 bytes: bit i of byte b of unit n is bit n of the code of element 4 i + b
    {DType::Q3_0, "Q3_0", 32, 14, {{2, 12, 4}, {0, 2, 2}}},
};

// True for formats that weights do not have.
[[maybe_unused]] static constexpr bool is_only_stored(const BlockFormat& format) {
    for (const BlockFormat& stored : kStoredFormats) {
        if (stored.type == format.type) return true;
    }
    return false;
}

// The format of `type`, or null if there is none. It is static so that each file keeps its own copy, compiled
// for its own instruction set.
[[maybe_unused]] static constexpr const BlockFormat* find_format(DType type) {
    for (const BlockFormat& format : kFormats) {
        if (format.type == type) return &format;
    }
    for (const BlockFormat& format : kStoredFormats) {
        if (format.type == type) return &format;
    }
    return nullptr;
}

// The place of units in a block of 16 rows, in bytes.
struct Place {
    int start;
    int step;  // from unit to unit
};

// The place of field `index`.
[[maybe_unused]] static constexpr Place place_of(const BlockFormat& format, int index) {
    int first = index, start = 0, step = 0;
    while (format.fields[first].alternates) --first;
    for (int i = 0; i < first; ++i) start += kLanes * format.fields[i].bytes;
    for (int i = first; i == first || (i < kMaxFields && format.fields[i].alternates); ++i) {
        step += kLanes * format.fields[i].unit;
    }
    return {start + kLanes * format.fields[index].unit * (index - first), step};
}

// The unit of a field in panels of keys, where each number is needed by itself.
[[maybe_unused]] static constexpr int key_unit(const BlockFormat& format, const Field& field) {
    return format.elements == 1 ? format.bytes : field.unit;
}

[[maybe_unused]] static constexpr bool is_quantized(DType type) { return find_format(type)->elements > 2; }

[[maybe_unused]] static constexpr int64_t row_bytes(DType type, int64_t k) {
    const BlockFormat* format = find_format(type);
    return k / format->elements * format->bytes;
}

[[maybe_unused]] static constexpr int64_t panel_bytes(DType type, int64_t k) {
    return (kLanes * row_bytes(type, k) + 63) / 64 * 64;
}

[[maybe_unused]] static constexpr int64_t num_panels(int64_t rows) { return (rows + kLanes - 1) / kLanes; }

// The number of panels that are interleaved line by line.
[[maybe_unused]] static constexpr int interleaved_panels(DType type) { return type == DType::F16 ? 2 : 1; }

// The places of a matrix's panels, in bytes from its start. A caller that needs many places constructs this
// once, since computing sizes takes divisions.
struct PanelPlaces {
    int64_t interleaved;
    int64_t bytes;       // of a panel
    int64_t line_bytes;  // of a panel's line: an interleaved neighbour starts after the first one

    constexpr PanelPlaces(DType type, int64_t k)
        : interleaved(interleaved_panels(type)),
          bytes(panel_bytes(type, k)),
          line_bytes(kLanes * find_format(type)->bytes) {}

    // The index of a panel within its group of interleaved panels.
    constexpr int64_t index_of(int64_t panel) const { return panel & (interleaved - 1); }
    // The start of a panel's first line.
    constexpr int64_t start_of(int64_t panel) const {
        const int64_t index = index_of(panel);
        return (panel - index) * bytes + index * line_bytes;
    }
};

[[maybe_unused]] static constexpr int64_t panel_start(DType type, int64_t k, int64_t panel) {
    return PanelPlaces(type, k).start_of(panel);
}

// The size includes the neighbour of the last panel, even if no such panel exists.
[[maybe_unused]] static constexpr int64_t matrix_bytes(DType type, int64_t rows, int64_t k) {
    const int64_t interleaved = interleaved_panels(type);
    return (num_panels(rows) + interleaved - 1) / interleaved * interleaved * panel_bytes(type, k);
}

}  // namespace chaski
