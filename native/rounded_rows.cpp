#include "rounded_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace chaski {
namespace {

constexpr int kBlock = 32, kBlocks = kSuperElements / kBlock;
constexpr std::int64_t kBlockBytes = kBlock + sizeof(float);
constexpr std::int64_t kSuperBytes = kSuperElements + sizeof(float) + kBlocks / 2;

// The int8 form of one row, with its memory.
struct RoundedRow {
    std::vector<std::int8_t> values;
    std::vector<float> scales;
    std::vector<std::int16_t> sums;
    std::vector<SuperScale> supers;

    RoundedRow(std::int64_t k, bool in_super_blocks)
        : values(k), scales(k / kBlock), sums(k / 16), supers(in_super_blocks ? k / kSuperElements : 0) {}

    void round(const Kernels& kernels, const float* x) {
        kernels.quantize_rows(
            x, 1, static_cast<std::int64_t>(values.size()),
            {values.data(), scales.data(), sums.data(), nullptr, supers.empty() ? nullptr : supers.data()});
    }

    // Whether products with this row and with another row have the same bits; the sums follow from the
    // values.
    bool is(const RoundedRow& other) const {
        return same_bytes(values, other.values) && same_bytes(scales, other.scales) &&
               same_bytes(supers, other.supers);
    }

    template <class T>
    static bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
    }
};

// Without their sign, floats compare like their bits as integers.
float largest_magnitude(const float* x, int count) {
    std::int32_t largest = 0;
    for (int i = 0; i < count; ++i) {
        largest = std::max(largest, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
    }
    return std::bit_cast<float>(largest);
}

std::uint8_t* put(std::uint8_t* at, const void* from, std::size_t count) {
    std::memcpy(at, from, count);
    return at + count;
}

void pack_row(const RoundedRow& row, const float* x, std::uint8_t* to) {
    const auto k = static_cast<std::int64_t>(row.values.size());
    const int size = row.supers.empty() ? kBlock : kSuperElements;
    for (std::int64_t at = 0; at < k; at += size) {
        const float amax = largest_magnitude(x + at, size);
        to = put(to, row.values.data() + at, size);
        to = put(to, &amax, sizeof(amax));
        if (row.supers.empty()) continue;
        const std::int16_t* shifts = row.supers[at / kSuperElements].shifts;
        for (int b = 0; b < kBlocks; b += 2)
            *to++ = static_cast<std::uint8_t>(shifts[b] | shifts[b + 1] << 4);
    }
}

// Returns `largest` for an int8 of magnitude 127, else `found`, with the sign of the int8. It has no branch,
// which would be unpredictable.
float chosen(std::int32_t q, std::int32_t magnitude, float found, float largest) {
    const std::int32_t is_largest = -static_cast<std::int32_t>(magnitude == 127);
    const std::int32_t bits = (std::bit_cast<std::int32_t>(found) & ~is_largest) |
                              (std::bit_cast<std::int32_t>(largest) & is_largest);
    return std::bit_cast<float>(bits | (q & std::int32_t{1} << 31));
}

// Values of the largest magnitude are restored exactly, so that the scale is the same.
void unpack_block(const std::int8_t* __restrict values, float amax, float* __restrict out) {
    const float scale = amax / 127.0f;
    for (int i = 0; i < kBlock; ++i) {
        const std::int32_t q = values[i], magnitude = q < 0 ? -q : q;
        out[i] = chosen(q, magnitude, static_cast<float>(magnitude) * scale, amax);
    }
}

// Each value is as far from zero as its int8 allows, so that the sums of magnitudes are again too large for
// smaller shifts. But no value exceeds the range of its shift.
void unpack_shifted_block(const std::int8_t* __restrict values, float amax, int shift,
                          float* __restrict out) {
    constexpr int kMostShift = 4;
    const float scale = amax / 127.0f * 0.0625f * static_cast<float>(1 << shift);
    const float most = shift == kMostShift ? amax : 127.0f * scale * 0.999999f;
    for (int i = 0; i < kBlock; ++i) {
        const std::int32_t q = values[i], magnitude = q < 0 ? -q : q;
        const float found = (static_cast<float>(magnitude) + 0.49f) * scale;
        out[i] = chosen(q, magnitude, found, most);
    }
}

void unpack_row(const std::uint8_t* from, std::int64_t k, bool in_super_blocks, float* out) {
    const int size = in_super_blocks ? kSuperElements : kBlock;
    for (std::int64_t at = 0; at < k; at += size) {
        const auto* values = reinterpret_cast<const std::int8_t*>(from);
        float amax;
        std::memcpy(&amax, from + size, sizeof(amax));
        from += size + sizeof(amax);
        if (!in_super_blocks) {
            unpack_block(values, amax, out + at);
            continue;
        }
        for (int b = 0; b < kBlocks; ++b) {
            const int shift = from[b / 2] >> 4 * (b % 2) & 7;
            unpack_shifted_block(values + kBlock * b, amax, shift, out + at + kBlock * b);
        }
        from += kBlocks / 2;
    }
}

std::int64_t row_bytes(std::int64_t k, bool in_super_blocks) {
    return in_super_blocks ? k / kSuperElements * kSuperBytes : k / kBlock * kBlockBytes;
}

}  // namespace

std::vector<std::uint8_t> rounded_rows(const Kernels& kernels, const float* x, std::int64_t n, std::int64_t k,
                                       bool in_super_blocks) {
    const std::int64_t small = row_bytes(k, in_super_blocks);
    const auto large = static_cast<std::int64_t>(k * sizeof(float));
    // Few rows are sent as floats, so memory is allocated only for those.
    std::vector<std::uint8_t> found(n + n * small + large);
    std::vector<float> again(k);
    RoundedRow row(k, in_super_blocks), other(k, in_super_blocks);
    std::int64_t at = n;
    for (std::int64_t i = 0; i < n; ++i) {
        row.round(kernels, x + i * k);
        pack_row(row, x + i * k, found.data() + at);
        unpack_row(found.data() + at, k, in_super_blocks, again.data());
        other.round(kernels, again.data());
        found[i] = row.is(other);
        if (found[i] == 0) {
            std::memcpy(found.data() + at, x + i * k, large);
            found.resize(found.size() + large - small);
        }
        at += found[i] == 0 ? large : small;
    }
    found.resize(at);
    return found;
}

bool unrounded_rows(std::span<const std::uint8_t> bytes, std::int64_t n, std::int64_t k, bool in_super_blocks,
                    float* out) {
    const auto total = static_cast<std::int64_t>(bytes.size());
    const auto large = static_cast<std::int64_t>(k * sizeof(float));
    std::int64_t at = n;
    for (std::int64_t i = 0; i < n; ++i) {
        if (n > total) return false;
        const std::int64_t size = bytes[i] == 0 ? large : row_bytes(k, in_super_blocks);
        if (at + size > total) return false;
        if (bytes[i] == 0) {
            std::memcpy(out + i * k, bytes.data() + at, large);
        } else {
            unpack_row(bytes.data() + at, k, in_super_blocks, out + i * k);
        }
        at += size;
    }
    return at == total;
}

}  // namespace chaski
