// Products of super-blocks by tensor instructions. The stored lines of codes are already in an order that the
// instructions take.
#pragma once

#include "matmul_arguments.h"

namespace chaski::CHASKI_ISA {

// The low and high bytes of the sums of a token's values in four sub-blocks of kSub, number 4 t and later,
// times 2^shift. `scales` has the token's shifts from word 4 on and, of blocks of 32, these sums from word 8
// on; `sums` has the sums of 16 values. After the last sub-block, the bytes are any.
template <int kSub>
CHASKI_INLINE uint2 bytes_of_sums(const int32_t* scales, const int32_t* sums, int t) {
    if constexpr (kSub == 32) {
        const auto words = reinterpret_cast<const uint2*>(scales + 8)[t % 2];
        return {device::select_bytes(words.x, words.y, 0x6420),
                device::select_bytes(words.x, words.y, 0x7531)};
    } else {
        uint2 bytes = {0, 0};
        for (int i = 0; i < 4; ++i) {
            const int32_t pair = sums[2 * t + i / 2], shifts = scales[4 + t];
            const int32_t sum = (i % 2 == 0 ? static_cast<int16_t>(pair) : pair >> 16)
                                << (i / 2 == 0 ? static_cast<int16_t>(shifts) : shifts >> 16);
            bytes.x |= static_cast<uint32_t>(sum & 255) << 8 * i;
            bytes.y |= static_cast<uint32_t>(sum >> 8 & 255) << 8 * i;
        }
        return bytes;
    }
}

// A super-block of kTokens tokens in its stored form. The distance between tokens is such that threads that
// read at the same time use different banks.
template <class Format, int kTokens>
struct Activated {
    static constexpr bool kHasSums = Format::kMinSub != 32;
    // True if one scale applies to 32 elements.
    static constexpr bool kIsWide = Format::kSub == 32 || Format::kMinSub == 32;

    alignas(16) uint8_t values[kTokens][kSuperElements + 16];
    // The unit, shifts from word 4 on, sums from word 8 on, and from word 12 on a number for each block of
    // 32: its shift or, if it has two scales, 2^shift.
    alignas(16) int32_t scales[kTokens][20];
    alignas(16) int32_t sums[kHasSums ? kTokens : 1][8];

    // Starts copying a super-block of all tokens with kGroups groups of 16 lanes, of which this is number
    // `which`. `sources`: the number of the first super-block of each token. `number`: its number in a row.
    template <int kGroups>
    CHASKI_INLINE void fetch(const Matmul& a, const uint32_t* sources, int number, int which) {
        constexpr int kWords = sizeof(SuperScale) / 4;
        static_assert(kWords == 9);
        // Lanes after the last word copy the last one again.
        const int own = lane(), word = own < kWords ? own : kWords - 1;
        // The addresses of the first token's data, kept from being computed again for each token.
        const auto* from = device::kept(reinterpret_cast<const uint8_t*>(a.values) + 16 * own);
        const auto* from_supers = device::kept(reinterpret_cast<const int32_t*>(a.supers) + word);
        const auto* from_sums = device::kept(reinterpret_cast<const int32_t*>(a.sums) + own % 8);
        auto* to = device::kept(values[which] + 16 * own);
        auto* to_supers = device::kept(&scales[which][word == 0 ? 0 : word + 3]);
        auto* to_sums = device::kept(&sums[kHasSums ? which : 0][own % 8]);
#pragma unroll
        for (int first = 0; first < kTokens; first += kGroups) {
            if (kTokens % kGroups != 0 && first + which >= kTokens) break;
            const uint64_t block = sources[first + which] + static_cast<uint32_t>(number);
            device::copy_16(to + first * sizeof(values[0]), from + block * kSuperElements);
            device::copy_4(to_supers + first * (sizeof(scales[0]) / 4), from_supers + block * kWords);
            if constexpr (kHasSums)
                device::copy_4(to_sums + first * (sizeof(sums[0]) / 4), from_sums + block * 8);
        }
    }
    // Unpacks the shifts that this thread has copied.
    template <int kGroups>
    CHASKI_INLINE void unpack_shifts(int which) {
        const int pair = lane() - 1;
        if (pair < 0 || pair >= 4) return;
#pragma unroll
        for (int first = 0; first < kTokens; first += kGroups) {
            if (kTokens % kGroups != 0 && first + which >= kTokens) break;
            auto& words = scales[first + which];
            const int32_t both = words[4 + pair], low = both & 31, high = both >> 16;
            *reinterpret_cast<int2*>(&words[12 + 2 * pair]) = {kIsWide ? low : 1 << low,
                                                               kIsWide ? high : 1 << high};
        }
    }
};

// The products of a warp: a super-block of 16 rows by kTiles tiles of 8 tokens. Thread 4 g + t passes every
// fourth word of rows 2 g and 2 g + 1 to the instructions, and of a tile's token g; it gets the sums of these
// rows and of tokens 2 t and 2 t + 1.
template <class Format, int kTiles, int kTokens>
struct Product {
    static constexpr int kSub = Format::kSub, kBlocks = kSuperElements / 32;
    static constexpr bool kIsWide = Activated<Format, kTokens>::kIsWide;
    static constexpr int kHalves = kIsWide ? 1 : 2;  // of 32 elements, with scales

    const uint8_t* block;
    const Activated<Format, kTokens>& x;
    const int g = static_cast<int>(threadIdx.x % 32 / 4), t = static_cast<int>(threadIdx.x % 4);

    // The numbers of this thread's row in units of `size` bytes, and codes from unit t on.
    CHASKI_INLINE Format row(int which, int size) const {
        return Format{{{block + size * (2 * g + which - lane())}}};
    }
    CHASKI_INLINE Format codes(int which) const {
        return Format{{{block + 4 * (2 * g + which - lane()), t}}};
    }
    // A tile's token. A single token stands in all columns.
    CHASKI_INLINE static int token_of(int tile, int column) { return kTokens == 1 ? 0 : 8 * tile + column; }

    // Calls store(tile, floats): of rows 2 g and 2 g + 1, and of each of tokens 2 t and 2 t + 1.
    template <class Store>
    CHASKI_INLINE void multiply(const Store& store) const {
        // This thread's part of the weights stays in registers for all tiles.
        uint32_t words[kBlocks][4], offsets[2], own[2];
        int32_t scales[kBlocks * kHalves][2];  // of rows
        float d[2], dmin[2];
        for (int i = 0; i < 2; ++i) {
            load_words(i, words);
            const Format numbers = row(i, 4), halves = row(i, 2);
            unroll<kBlocks * kHalves>([&](auto number) __attribute__((always_inline)) {
                constexpr int kNumber = decltype(number)::value;
                scales[kNumber][i] = device::byte_of<kNumber % 4>(scales_of<kNumber / 4>(numbers));
            });
            d[i] = halves.d().v;
            if constexpr (Format::kOffset != 0) offsets[i] = own_scales(numbers);
            if constexpr (Format::kMins) {
                own[i] = own_mins(numbers);
                dmin[i] = halves.dmin().v;
            }
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            int32_t products[4] = {}, mins[4] = {};
            multiply_tile(words, scales, tile, products);
            if constexpr (Format::kOffset != 0) {
                int32_t sums[4] = {};
                multiply_sums<kSub>(offsets, tile, sums);
                for (int i = 0; i < 4; ++i) products[i] -= Format::kOffset * sums[i];
            }
            if constexpr (Format::kMins) multiply_sums<Format::kMinSub>(own, tile, mins);
            float floats[4];
            for (int i = 0; i < 4; ++i) {
                floats[i] = static_cast<float>(products[i]) * d[i / 2];
                if constexpr (Format::kMins) {
                    floats[i] = device::fma(static_cast<float>(mins[i]), dmin[i / 2], floats[i]);
                }
            }
            store(tile, floats);
        }
    }

    CHASKI_INLINE void load_words(int which, uint32_t (&words)[kBlocks][4]) const {
        const Format own = codes(which);
        unroll<kBlocks>([&](auto number) __attribute__((always_inline)) {
            constexpr int kBlock = decltype(number)::value;
            constexpr int kLow = kSub == 32 ? kBlock : 2 * kBlock;
            constexpr int kHigh = kSub == 32 ? kBlock : kLow + 1, kUnit = kSub == 32 ? 4 : 0;
            words[kBlock][which] = own.template codes<kLow, 0>().v;
            words[kBlock][2 + which] = own.template codes<kHigh, kUnit>().v;
        });
    }

    // Adds a tile's products in scales.
    CHASKI_INLINE void multiply_tile(const uint32_t (&words)[kBlocks][4],
                                     const int32_t (&scales)[kBlocks * kHalves][2], int tile,
                                     int32_t (&products)[4]) const {
        int4 shifts[2];  // of four blocks of 32
        const int own = static_cast<int>(threadIdx.x % 32);
        const uint8_t* from = x.values[token_of(tile, own % 8)] + own / 8 * 16;
#pragma unroll
        for (int b = 0; b < kBlocks; b += 2) {
            uint32_t values[4];  // words t of four runs of 16 elements, of token g
            device::load_matrices(values, from + 32 * b);
            if (b % 4 == 0) {
                for (int i = 0; i < 2; ++i) {
                    shifts[i] = *reinterpret_cast<const int4*>(x.scales[token_of(tile, 2 * t + i)] + 12 + b);
                }
            }
            for (int one = 0; one < 2; ++one) {
                int32_t low[4] = {}, high[4] = {};
                const auto& own_words = words[b + one];
                const auto* own_scales = &scales[(b + one) * kHalves];
                if constexpr (kIsWide) {
                    device::multiply_32_us(low, own_words, values[2 * one], values[2 * one + 1]);
                } else {
                    device::multiply_16_us(low, own_words[0], own_words[1], values[2 * one]);
                    device::multiply_16_us(high, own_words[2], own_words[3], values[2 * one + 1]);
                }
                for (int i = 0; i < 4; ++i) {
                    const int4& all = shifts[i % 2];
                    const int32_t shift = b % 4 == 0 ? (one == 0 ? all.x : all.y) : one == 0 ? all.z : all.w;
                    const int32_t scale = own_scales[0][i / 2];
                    if constexpr (kIsWide) {
                        products[i] += low[i] * device::shift_left(scale, shift);
                    } else {
                        products[i] += (low[i] * scale + high[i] * own_scales[1][i / 2]) * shift;
                    }
                }
            }
        }
    }

    // Four scales of a row, as signed bytes.
    template <int W>
    CHASKI_INLINE static uint32_t scales_of(const Format& numbers) {
        constexpr uint32_t kOffset = Format::kType == DType::Q3_K ? 32 : 0;
        return device::kept(device::subtract_bytes(numbers.template four_scales<W>().v, kOffset));
    }
    // The scales or mins of a row that this thread passes to multiply sums of values: word t; after the last
    // word, zeros.
    CHASKI_INLINE uint32_t own_scales(const Format& numbers) const {
        uint32_t found = 0;
        unroll<kSuperElements / kSub / 4>([&](auto number) __attribute__((always_inline)) {
            const uint32_t word = scales_of<decltype(number)::value>(numbers);
            if (t == decltype(number)::value) found = word;
        });
        return found;
    }
    CHASKI_INLINE uint32_t own_mins(const Format& numbers) const {
        uint32_t found = 0;
        unroll<kSuperElements / Format::kMinSub / 4>([&](auto number) __attribute__((always_inline)) {
            const uint32_t word = numbers.template four_mins<decltype(number)::value>().v;
            if (t == decltype(number)::value) found = word;
        });
        return found;
    }

    // Adds to `y` the products of numbers with the sums of values in sub-blocks of kOwn.
    template <int kOwn>
    CHASKI_INLINE void multiply_sums(const uint32_t (&words)[2], int tile, int32_t (&y)[4]) const {
        const int token = token_of(tile, g);
        const uint2 bytes =
            bytes_of_sums<kOwn>(x.scales[token], x.sums[Format::kMinSub != 32 ? token : 0], t);
        int32_t high[4] = {};
        device::multiply_16_su(y, words[0], words[1], bytes.x);
        device::multiply_16_ss(high, words[0], words[1], bytes.y);
        for (int i = 0; i < 4; ++i) y[i] += high[i] * 256;
    }
};

}  // namespace chaski::CHASKI_ISA
