// Reordering of file rows into panels (see panel.h).
//
// Runs of 16 bytes of the 16 rows are transposed in 128-bit registers; the remaining units of a field go one
// by one.
#include <type_traits>

#include "entry_points.h"
#include "simd.h"
#include "transpose.h"

namespace chaski::CHASKI_ISA {

using Bytes16 = uint8_t __attribute__((vector_size(16)));

constexpr int kMovedBytes = 64;  // of the longest field whose bits or bytes change places

// Bit 4 i + b of x, which belongs to element 4 i + b, moves to bit 8 b + i (a transposition of 8 by 4 bits).
CHASKI_INLINE uint32_t spread_bits(uint32_t x) {
    uint32_t spread = 0;
    for (int b = 0; b < 4; ++b) {
        uint32_t every_fourth = x >> b & 0x11111111u;
        every_fourth = (every_fourth | every_fourth >> 3) & 0x03030303u;
        every_fourth = (every_fourth | every_fourth >> 6) & 0x000f000fu;
        spread |= ((every_fourth | every_fourth >> 12) & 0xffu) << 8 * b;
    }
    return spread;
}

// Bits 8 i + 2 b and the next one of x, which belong to element 4 i + b, move to bit 8 b + 2 i (a
// transposition of 4 by 4 fields).
CHASKI_INLINE uint32_t spread_pairs(uint32_t x) {
    const auto swap = [](uint32_t y, uint32_t mask, int apart) {
        const uint32_t changed = (y ^ y >> apart) & mask;
        return y ^ changed ^ changed << apart;
    };
    return swap(swap(x, 0x00cc00ccu, 6), 0x0000f0f0u, 12);
}

// The even bytes of x, then its odd bytes.
CHASKI_INLINE uint64_t split_words(uint64_t x) {
    using Bytes8 = uint8_t __attribute__((vector_size(8)));
    const auto bytes = __builtin_bit_cast(Bytes8, x);
    return __builtin_bit_cast(uint64_t, __builtin_shufflevector(bytes, bytes, 0, 2, 4, 6, 1, 3, 5, 7));
}

// Writes the changed `bytes` of a field, whole words of T.
template <class T, class F>
CHASKI_INLINE void transform(const uint8_t* from, int64_t bytes, uint8_t* to, const F& f) {
    for (int64_t i = 0; i < bytes; i += sizeof(T)) write(to + i, f(read<T>(from + i)));
}

// Even (words 0, 2, 4, 6) and odd words of eight words, in the two halves.
CHASKI_INLINE Dwords4 even_then_odd(Dwords4 a) {
    const Words8 w = __builtin_bit_cast(Words8, a);
    return __builtin_bit_cast(Dwords4, __builtin_shufflevector(w, w, 0, 2, 4, 6, 1, 3, 5, 7));
}

// Writes 16 bytes of each of four rows to lanes 4 quad .. 4 quad + 3 of their units.
template <int kUnit>
CHASKI_INLINE void interleave_quad(const uint8_t* const (&rows)[kLanes], int64_t at, int quad, uint8_t* out,
                                   int step, Dwords4 flip) {
    Dwords4 row[4], column[4];
    for (int r = 0; r < 4; ++r) row[r] = read<Dwords4>(rows[4 * quad + r] + at) ^ flip;
    transpose_4x4(row, column);
    for (int j = 0; j < 4; ++j) {
        if constexpr (kUnit == 4) {
            write(out + step * j + 16 * quad, column[j]);
        } else {
            const auto halves =
                __builtin_bit_cast(uint64_t __attribute__((vector_size(16))), even_then_odd(column[j]));
            write(out + step * (2 * j) + 8 * quad, static_cast<uint64_t>(halves[0]));
            write(out + step * (2 * j + 1) + 8 * quad, static_cast<uint64_t>(halves[1]));
        }
    }
}

template <int kUnit>
CHASKI_INLINE void interleave(const uint8_t* const (&rows)[kLanes], int64_t at, int64_t bytes, Dwords4 flip,
                              uint8_t* out, int step) {
    int64_t done = 0;
    for (; done + 16 <= bytes; done += 16) {
        for (int quad = 0; quad < 4; ++quad)
            interleave_quad<kUnit>(rows, at + done, quad, out + step * (done / kUnit), step, flip);
    }
    using Unit = std::conditional_t<kUnit == 4, uint32_t, std::conditional_t<kUnit == 2, uint16_t, uint8_t>>;
    const auto flip_unit = static_cast<Unit>(flip[0]);
    for (; done + kUnit <= bytes; done += kUnit) {
        uint8_t* unit = out + step * (done / kUnit);
        for (int r = 0; r < kLanes; ++r) {
            write(unit + kUnit * r, static_cast<Unit>(read<Unit>(rows[r] + at + done) ^ flip_unit));
        }
    }
    const auto flip_byte = static_cast<uint8_t>(flip[0]);
    for (; done < bytes; ++done) {
        uint8_t* unit = out + step * (done / kUnit) + done % kUnit;
        for (int r = 0; r < kLanes; ++r) unit[kUnit * r] = rows[r][at + done] ^ flip_byte;
    }
}

// Writes a field whose bits or bytes change places within a row.
static void pack_moved(const Field& field, const uint8_t* const (&rows)[kLanes], int64_t at, uint8_t* out,
                       int step) {
    alignas(16) uint8_t moved[kLanes][kMovedBytes];
    const uint8_t* moved_rows[kLanes];
    for (int r = 0; r < kLanes; ++r) {
        moved_rows[r] = moved[r];
        if (field.transform == Transform::kSpreadBits) {
            transform<uint32_t>(rows[r] + at, field.bytes, moved[r], spread_bits);
        } else if (field.transform == Transform::kSpreadPairs) {
            transform<uint32_t>(rows[r] + at, field.bytes, moved[r], spread_pairs);
        } else {
            transform<uint64_t>(rows[r] + at, field.bytes, moved[r], split_words);
        }
    }
    interleave<4>(moved_rows, 0, field.bytes, Dwords4{}, out, step);
}

// Writes `bytes` of a field to its units, which are `step` bytes apart.
CHASKI_INLINE void pack_field(const Field& field, const uint8_t* const (&rows)[kLanes], int64_t at,
                              int64_t bytes, uint8_t* out, int step) {
    const uint32_t flip = field.transform == Transform::kFlipSign ? 0x80808080u : 0;
    const Dwords4 flips = {flip, flip, flip, flip};
    if (field.transform > Transform::kFlipSign) {
        pack_moved(field, rows, at, out, step);
    } else if (field.unit == 4) {
        interleave<4>(rows, at, bytes, flips, out, step);
    } else if (field.unit == 2) {
        interleave<2>(rows, at, bytes, flips, out, step);
    } else {
        interleave<1>(rows, at, bytes, flips, out, step);
    }
}

static void pack_panel(const BlockFormat& format, const uint8_t* const (&rows)[kLanes], int64_t k,
                       uint8_t* panel) {
    if (format.elements == 1) {
        pack_field(format.fields[0], rows, 0, k * format.bytes, panel,
                   interleaved_panels(format.type) * place_of(format, 0).step);
        return;
    }
    Place places[kMaxFields];
    for (int i = 0; i < kMaxFields; ++i) places[i] = place_of(format, i);
    for (int64_t block = 0; block < k / format.elements; ++block) {
        for (int i = 0; i < kMaxFields && format.fields[i].bytes > 0; ++i) {
            const Field& field = format.fields[i];
            pack_field(field, rows, block * format.bytes + field.offset, field.bytes, panel + places[i].start,
                       places[i].step);
        }
        panel += kLanes * format.bytes;
    }
}

void pack(DType type, const uint8_t* rows, int64_t row_stride, int64_t num_rows, int64_t k, uint8_t* panels,
          int64_t panel_begin, int64_t panel_end) {
    const BlockFormat& format = *find_format(type);
    const int64_t bytes = panel_bytes(type, k);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
        // Rows after the end repeat the last one: they are computed but never stored.
        const uint8_t* row[kLanes];
        for (int r = 0; r < kLanes; ++r) {
            const int64_t index = kLanes * panel + r;
            row[r] = rows + (index < num_rows ? index : num_rows - 1) * row_stride;
        }
        uint8_t* out = panels + panel_start(type, k, panel);
        // Some of the last bytes may belong to no row.
        if (interleaved_panels(type) == 1) __builtin_memset(out + bytes - 64, 0, 64);
        pack_panel(format, row, k, out);
    }
}

}  // namespace chaski::CHASKI_ISA
