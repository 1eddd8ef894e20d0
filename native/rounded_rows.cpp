#include "rounded_rows.h"

#include <algorithm>
#include <cmath>
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

    // Whether products with this row and with another one have the same bits: sums follow from values.
    bool is(const RoundedRow& other) const {
        return same_bytes(values, other.values) && same_bytes(scales, other.scales) &&
               same_bytes(supers, other.supers);
    }

    template <class T>
    static bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
    }
};

float largest_magnitude(const float* x, int count) {
    float largest = 0.0f;
    for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
    return largest;
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

// Values of the largest magnitude are exactly that, so that the scale is the same.
void unpack_block(const std::int8_t* values, float amax, float* out) {
    const float scale = amax / 127.0f;
    for (int i = 0; i < kBlock; ++i) {
        const int q = values[i];
        out[i] = q == 127 ? amax : q == -127 ? -amax : static_cast<float>(q) * scale;
    }
}

// Each value is as far from zero as may be rounded to its int8: then smaller shifts, for which the sums of
// magnitudes were too large, are so again. But none is beyond what its shift has room for.
void unpack_shifted_block(const std::int8_t* values, float amax, int shift, float* out) {
    constexpr int kMostShift = 4;
    const float scale = amax / 127.0f * 0.0625f * static_cast<float>(1 << shift);
    const float most = shift == kMostShift ? amax : 127.0f * scale * 0.999999f;
    for (int i = 0; i < kBlock; ++i) {
        const int q = values[i];
        const float magnitude = static_cast<float>(q < 0 ? -q : q);
        const float found = magnitude == 127.0f ? most : (magnitude + 0.49f) * scale;
        out[i] = q < 0 ? -found : found;
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
    std::vector<std::uint8_t> found(n + n * large);
    std::vector<float> again(k);
    RoundedRow row(k, in_super_blocks), other(k, in_super_blocks);
    std::int64_t at = n;
    for (std::int64_t i = 0; i < n; ++i) {
        row.round(kernels, x + i * k);
        pack_row(row, x + i * k, found.data() + at);
        unpack_row(found.data() + at, k, in_super_blocks, again.data());
        other.round(kernels, again.data());
        found[i] = row.is(other);
        if (found[i] == 0) std::memcpy(found.data() + at, x + i * k, large);
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
