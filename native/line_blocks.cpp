#include "line_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace chaski {
namespace {

constexpr int kBlock = 256, kMostSubBlocks = 16;  // of a block
constexpr int kGroup = 16;                        // blocks that are encoded at once, in the cache
constexpr int kGroupSubBlocks = kGroup * kMostSubBlocks;
constexpr int kTries = 3;
constexpr float kSteps[kTries] = {0.0f, -1.0f, 1.0f};
constexpr float kLargestHalf = 65504.0f, kNegligible = 1e-15f;
constexpr double kSameDirection = 1e-9;

// The levels of a type: `top` is the highest one of an element, `top_multiple` that of a scale.
struct LineFormat {
    DType type;
    int elements;  // of a sub-block
    float top, top_multiple;
};

LineFormat format_of_lines(DType type) {
    if (type == DType::Q2_K) return {type, 16, 3.0f, 15.0f};
    return {type, 32, type == DType::Q4_K ? 15.0f : 31.0f, 63.0f};
}

// The sum of a multiple of eight numbers, `stride` apart, in NumPy's order.
template <class T>
T pairwise_sum(const T* x, int count, int stride = 1) {
    constexpr int kAtOnce = 8, kMost = 128;
    if (count > kMost) {
        const int half = count / 2;
        return pairwise_sum(x, half, stride) + pairwise_sum(x + half * stride, half, stride);
    }
    T sum[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) sum[i] = x[i * stride];
    for (int begin = kAtOnce; begin < count; begin += kAtOnce) {
        for (int i = 0; i < kAtOnce; ++i) sum[i] += x[(begin + i) * stride];
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

float reciprocal(float x) { return std::fabs(x) > kNegligible ? 1.0f / x : 0.0f; }

// A finite number in half precision.
float widened(std::uint16_t half) {
    const float magnitude = std::bit_cast<float>((half & 0x7fffu) << 13) * 0x1p112f;
    return half >> 15 != 0 ? -magnitude : magnitude;
}

// Puts kBits bits of each of 256 levels, from bit kFrom on, together: a byte has those of elements 32 apart.
template <int kFrom, int kBits>
std::uint8_t* pack(const std::uint8_t* levels, std::uint8_t* out) {
    constexpr int kRun = 32, kPerByte = 8 / kBits, kMask = (1 << kBits) - 1;
    for (int begin = 0; begin < kBlock; begin += kRun * kPerByte, out += kRun) {
        for (int i = 0; i < kRun; ++i) {
            int byte = 0;
            for (int k = 0; k < kPerByte; ++k)
                byte |= (levels[begin + kRun * k + i] >> kFrom & kMask) << (kBits * k);
            out[i] = static_cast<std::uint8_t>(byte);
        }
    }
    return out;
}

// Puts 8 scales and 8 minimums of six bits into 12 bytes.
std::uint8_t* pack_multiples(const std::uint8_t* scales, const std::uint8_t* minimums, std::uint8_t* out) {
    for (int i = 0; i < 4; ++i) {
        out[i] = static_cast<std::uint8_t>(scales[i] | scales[4 + i] >> 4 << 6);
        out[4 + i] = static_cast<std::uint8_t>(minimums[i] | minimums[4 + i] >> 4 << 6);
        out[8 + i] = static_cast<std::uint8_t>((scales[4 + i] & 15) | minimums[4 + i] << 4);
    }
    return out + 12;
}

// One number for each block or for each sub-block of a group: a scale or a minimum.
struct Units {
    float of[2][kGroup];
};
struct SubBlockLines {
    float of[2][kGroupSubBlocks];
};

// The best lines that are multiples of units.
struct Found {
    Units units;
    std::uint16_t halves[2][kGroup] = {};  // the units in half precision
    SubBlockLines multiples;
    std::uint8_t choices[kGroupSubBlocks], levels[kGroup * kBlock];
    float sums[kGroupSubBlocks * kLineSums], error[kGroup];
};

// The search for up to kGroup blocks.
class GroupSearch {
   public:
    GroupSearch(const Kernels& kernels, const LineFormat& format, const SubBlocks& x, const LineSteps& steps)
        : kernels_(kernels),
          format_(format),
          x_(x),
          sub_blocks_(kBlock / x.elements),
          count_(static_cast<int>(x.count) / sub_blocks_) {
        kernels.fit_affine(x, format.top, steps.intervals, steps.num_intervals, lines_.of[0], lines_.of[1]);
        float weights[kGroupSubBlocks];
        for (int i = 0; i < x.count; ++i) weights[i] = pairwise_sum(x.weights + i * x.elements, x.elements);
        for (int u = 0; u < 2; ++u) {
            kernels.fit_symmetric({lines_.of[u], weights, count_, sub_blocks_}, 0.0f, format.top_multiple,
                                  steps.places, steps.num_places, first_.units.of[u]);
        }
        find(first_);
        for (int b = 0; b < count_; ++b) fit_units(b);
        find(second_);
    }

    void write(std::uint8_t* out, int block_bytes) const {
        for (int b = 0; b < count_; ++b)
            write_block(second_.error[b] < first_.error[b] ? second_ : first_, b, out + block_bytes * b);
    }

   private:
    // Finds the best multiples of the units of `found`, which it rounds.
    void find(Found& found) const {
        float tried[2][kTries * kGroupSubBlocks];
        for (int u = 0; u < 2; ++u) {
            round_units(found.units.of[u], found.halves[u]);
            for (int i = 0; i < x_.count; ++i) {
                const float unit = found.units.of[u][i / sub_blocks_];
                const float nearest = nearest_multiple(lines_.of[u][i] * reciprocal(unit));
                found.multiples.of[u][i] = nearest;
                for (int t = 0; t < kTries; ++t) tried[u][t * x_.count + i] = unit * moved(nearest, t);
            }
        }
        kernels_.choose_lines(x_, format_.top, {tried[0], tried[1], kTries},
                              {found.choices, found.levels, found.sums});
        for (int i = 0; i < x_.count; ++i) {
            const int choice = found.choices[i];
            float& of_scale = found.multiples.of[0][i];
            float& of_minimum = found.multiples.of[1][i];
            of_scale = moved(of_scale, choice / kTries);
            of_minimum = moved(of_minimum, choice % kTries);
        }
        for (int b = 0; b < count_; ++b)
            found.error[b] = pairwise_sum(found.sums + b * sub_blocks_ * kLineSums, sub_blocks_, kLineSums);
    }

    void round_units(float (&units)[kGroup], std::uint16_t (&halves)[kGroup]) const {
        for (int b = 0; b < count_; ++b) units[b] = std::clamp(units[b], -kLargestHalf, kLargestHalf);
        kernels_.encode_blocks(DType::F16, units, count_, kLargestHalf,
                               reinterpret_cast<std::uint8_t*>(halves));
        for (int b = 0; b < count_; ++b) units[b] = widened(halves[b]);
    }

    float nearest_multiple(float x) const {
        constexpr float kWhole = 0x1.8p23f;  // numbers of this size have no bits after the point
        return std::clamp(x, 0.0f, format_.top_multiple) + kWhole - kWhole;
    }

    float moved(float multiple, int step) const {
        return std::clamp(multiple + kSteps[step], 0.0f, format_.top_multiple);
    }

    // The units with the least error for the levels in `first_`, by weighted least squares.
    void fit_units(int b) {
        enum { kSS, kSM, kMM, kSX, kMX, kPairs };
        double of_pairs[kPairs][kMostSubBlocks];
        for (int i = 0; i < sub_blocks_; ++i) {
            const int at = b * sub_blocks_ + i;
            const float* sums = first_.sums + at * kLineSums;
            const double w = sums[1], x = sums[2], level = sums[3], ll = sums[4], xl = sums[5];
            const double s = first_.multiples.of[0][at], m = first_.multiples.of[1][at];
            of_pairs[kSS][i] = s * s * ll;
            of_pairs[kSM][i] = s * m * level;
            of_pairs[kMM][i] = m * m * w;
            of_pairs[kSX][i] = s * xl;
            of_pairs[kMX][i] = m * x;
        }
        double sum[kPairs];
        for (int k = 0; k < kPairs; ++k) sum[k] = pairwise_sum(of_pairs[k], sub_blocks_);
        const double ss = sum[kSS], sm = sum[kSM], mm = sum[kMM], sx = sum[kSX], mx = sum[kMX];
        const double determinant = ss * mm - sm * sm;
        const bool is_line = determinant > kSameDirection * ss * mm;
        const double scale = is_line ? (sx * mm - sm * mx) / determinant : sx / (ss > 0 ? ss : 1);
        const double minimum = is_line ? (sx * sm - ss * mx) / determinant : 0;
        second_.units.of[0][b] = static_cast<float>(scale);
        second_.units.of[1][b] = static_cast<float>(minimum > 0 ? minimum : 0);
    }

    void write_block(const Found& found, int b, std::uint8_t* out) const {
        const std::uint8_t* levels = found.levels + b * kBlock;
        const std::uint16_t units[] = {found.halves[0][b], found.halves[1][b]};
        std::uint8_t multiples[2][kMostSubBlocks];
        for (int u = 0; u < 2; ++u) {
            for (int i = 0; i < sub_blocks_; ++i)
                multiples[u][i] = static_cast<std::uint8_t>(found.multiples.of[u][b * sub_blocks_ + i]);
        }
        if (format_.type == DType::Q2_K) {
            for (int i = 0; i < kMostSubBlocks; ++i)
                *out++ = static_cast<std::uint8_t>(multiples[0][i] | multiples[1][i] << 4);
            out = pack<0, 2>(levels, out);
            std::memcpy(out, units, sizeof units);
            return;
        }
        std::memcpy(out, units, sizeof units);
        out = pack_multiples(multiples[0], multiples[1], out + sizeof units);
        if (format_.type == DType::Q5_K) out = pack<4, 1>(levels, out);
        pack<0, 4>(levels, out);
    }

    const Kernels& kernels_;
    const LineFormat& format_;
    const SubBlocks& x_;
    const int sub_blocks_, count_;
    SubBlockLines lines_;  // the best ones
    Found first_, second_;
};

}  // namespace

void weigh_elements(const float* x, const float* importance, std::int64_t count, int elements,
                    float* weights) {
    for (std::int64_t b = 0; b < count; ++b, x += elements, weights += elements) {
        for (int i = 0; i < elements; ++i) weights[i] = x[i] * x[i];
        const float twice = pairwise_sum(weights, elements) / static_cast<float>(elements) * 2.0f;
        for (int i = 0; i < elements; ++i) weights[i] = std::sqrt(weights[i] + twice);
        if (importance == nullptr) continue;
        for (int i = 0; i < elements; ++i) weights[i] *= importance[i];
        importance += elements;
    }
}

void encode_lines(const Kernels& kernels, DType type, const float* values, const float* weights,
                  std::int64_t blocks, const LineSteps& steps, std::uint8_t* out) {
    const LineFormat format = format_of_lines(type);
    const int block_bytes = find_format(type)->bytes, sub_blocks = kBlock / format.elements;
    for (std::int64_t b = 0; b < blocks; b += kGroup) {
        const std::int64_t count = std::min<std::int64_t>(kGroup, blocks - b);
        const SubBlocks x{values + b * kBlock, weights + b * kBlock, count * sub_blocks, format.elements};
        GroupSearch(kernels, format, x, steps).write(out + b * block_bytes, block_bytes);
    }
}

}  // namespace chaski
