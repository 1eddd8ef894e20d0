// Unpacking of panels to slabs (unpack.h), and of rows to floats.
#include "unpack.h"

#include "blocks.h"
#include "entry_points.h"
#include "pieces.h"
#include "unpack_blocks.h"

#if defined(__AVX512VNNI__)
#include "cpu_features.h"

// Compiled for further instructions, like the functions that table.cpp declares.
namespace chaski::avx512_vbmi {
void (*unpack_of_codebook(DType type, bool is_centred))(const uint8_t* panel, int64_t elements,
                                                        uint8_t* slab);
}
#endif

namespace chaski::CHASKI_ISA {

template <class Format>
static void unpack_words(const uint8_t* panel, int64_t elements, uint8_t* slab) {
    for (int64_t at = 0; at < elements; at += Format::kElements, panel += Format::kBytes) {
        const Format block{{panel}};
        unroll<Format::kElements / 32>([&](auto s) __attribute__((always_inline)) {
            unroll<8>([&](auto i) __attribute__((always_inline)) {
                const U8x64 codes = block.template codes<s.value, i.value>();
                auto* lines = reinterpret_cast<int32_t*>(slab + 128 * i);
                store_i32(lines, words<0>(codes, Format::kOffset));
                store_i32(lines + kLanes, words<1>(codes, Format::kOffset));
            });
            store_f32(reinterpret_cast<float*>(slab + 2 * kLanes * 32), block.template scale<s.value>());
            slab += kWordBlockBytes;
        });
    }
}

template <class Format, bool kCentred>
static void unpack_super_blocks(const uint8_t* panel, int64_t elements, uint8_t* slab) {
    using Slab = SuperSlab<Format::kSub, Format::kMinSub>;
    constexpr int kSub = Format::kSub;
    for (int64_t at = 0; at < elements; at += kSuperElements, panel += Format::kBytes, slab += Slab::kBytes) {
        const Format block{{panel}};
        unroll<Slab::kPairs>([&](auto p) __attribute__((always_inline)) {
            constexpr int kFirst = first_of_pair<kSub, p.value>;
            uint8_t* lines = slab + kLanes * kSub * 2 * p;
            unpack_codes<Format, kCentred, kFirst>(block, lines);
            unpack_codes<Format, kCentred, kFirst + kPairStep<kSub>>(block, lines + kLanes * kSub);
            store_i32(reinterpret_cast<int32_t*>(slab + Slab::kScales + 64 * p),
                      block.template scales<p.value>());
        });
        store_f32(reinterpret_cast<float*>(slab + Slab::kD), block.d());
        if constexpr (Format::kMins) {
            unroll<Slab::kMinPairs>([&](auto p) __attribute__((always_inline)) {
                store_i32(reinterpret_cast<int32_t*>(slab + Slab::kMins + 64 * p),
                          block.template mins<p.value>());
            });
            store_f32(reinterpret_cast<float*>(slab + Slab::kDMin), block.dmin());
        }
    }
}

template <class Format, bool kCentred>
constexpr Unpack unpack_of() {
    if constexpr (Format::kIsSuper) {
        return unpack_super_blocks<Format, kCentred>;
    } else {
        return unpack_blocks<Format, kCentred>;
    }
}

template <class Weights>
static void widen(const uint8_t* panel, int64_t elements, uint8_t* slab) {
    auto* lines = reinterpret_cast<float*>(slab);
    // A pair is never split.
    const int64_t count = Weights::kType == DType::BF16 ? elements + elements % 2 : elements;
    for (int64_t i = 0; i < count; ++i) store_f32(lines + kLanes * i, Weights::load(panel, i));
}

static int read_code(const uint8_t* lines, int lane, int i) { return lines[64 * (i / 4) + 4 * lane + i % 4]; }

// One lane of the slab of a block of the file.
template <class Format>
static void read_block_lane(const uint8_t* slab, int lane, float* out) {
    constexpr int kSub = Format::kSub;
    for (int at = 0; at < Format::kElements; at += 32, slab += kBlockBytes<Format::kMins, kSub>) {
        const uint8_t* tail = slab + kLanes * 32 + 4 * lane;
        const float min = Format::kMins ? read<float>(tail + 64) : 0.0f;
        for (int i = 0; i < 32; ++i) {
            const auto scale = read<float>(tail + 64 * (i / kSub));
            *out++ = scale * static_cast<float>(read_code(slab, lane, i) - Format::kOffset) - min;
        }
    }
}

template <class Format>
static void read_super_lane(const uint8_t* slab, int lane, float* out) {
    constexpr int kSub = Format::kSub, kMinSub = Format::kMinSub;
    using Slab = SuperSlab<kSub, kMinSub>;
    // The place of sub-block `sub` of `size` elements in the order of pairs.
    const auto place_of = [](int sub, int size) {
        const int step = 32 / size;
        return sub / (2 * step) * 2 * step + 2 * (sub % step) + sub / step % 2;
    };
    const auto number = [&](int from, int place) {
        return static_cast<float>(read<int16_t>(slab + from + 64 * (place / 2) + 4 * lane + 2 * (place % 2)));
    };
    const auto d = read<float>(slab + Slab::kD + 4 * lane);
    for (int i = 0; i < kSuperElements; ++i) {
        const int place = place_of(i / kSub, kSub);
        const int code = read_code(slab + kLanes * kSub * place, lane, i % kSub) - Format::kOffset;
        out[i] = d * number(Slab::kScales, place) * static_cast<float>(code);
        if constexpr (Format::kMins) {
            const auto dmin = read<float>(slab + Slab::kDMin + 4 * lane);
            out[i] += dmin * number(Slab::kMins, place_of(i / kMinSub, kMinSub));
        }
    }
}

template <class Format>
static Unpacker quantized() {
    static_assert(Format::kIsSuper == wants_super_blocks(Format::kType));
    Unpacker u = {.type = Format::kType,
                  .sub = Format::kSub,
                  .mins = Format::kMins,
                  .min_sub = 0,
                  .offset = Format::kOffset,
                  .max_code = Format::kMaxCode,
                  .block_elements = Format::kElements,
                  .unpack = unpack_of<Format, false>(),
                  .unpack_for_tiles = nullptr,
                  .unpack_three_pieces = nullptr,
                  .unpack_words = nullptr,
                  .read_lane = read_block_lane<Format>};
    if constexpr (Format::kIsSuper) {
        u.min_sub = Format::kMinSub;
        u.read_lane = read_super_lane<Format>;
    }
    if constexpr (kWordsAreFaster && Format::kMaxCode > 127) u.unpack_words = unpack_words<Format>;
    constexpr bool kInPieces = Format::kIsSuper && Format::kSub == 16;
    if constexpr (kHasAmx && !kInPieces) u.unpack_for_tiles = unpack_of<Format, Format::kOffset != 0>();
    if constexpr (kHasAmx && kInPieces) u.unpack_for_tiles = unpack_pieces<Format, 2>;
    if constexpr (kHasAmx && Format::kIsSuper) u.unpack_three_pieces = unpack_pieces<Format, 3>;
#if defined(__AVX512VNNI__)
    if (has_codebook(Format::kType) && cpu_features().vbmi) {
        u.unpack = avx512_vbmi::unpack_of_codebook(Format::kType, false);
        if (kHasAmx) u.unpack_for_tiles = avx512_vbmi::unpack_of_codebook(Format::kType, true);
    }
#endif
    return u;
}
template <class Weights>
constexpr Unpacker kFloat = {.type = Weights::kType,
                             .sub = 1,
                             .mins = false,
                             .min_sub = 0,
                             .offset = 0,
                             .max_code = 0,
                             .block_elements = Weights::kType == DType::BF16 ? 2 : 1,
                             .unpack = widen<Weights>,
                             .unpack_for_tiles = nullptr,
                             .unpack_three_pieces = nullptr,
                             .unpack_words = nullptr,
                             .read_lane = nullptr};

// Computed by the first call, since the instruction set must not be used before.
template <class... Blocks, class... Codebooks, class... SuperBlocks>
static const Unpacker& find_unpacker(DType type, FormatList<Blocks...>, FormatList<Codebooks...>,
                                     FormatList<SuperBlocks...>) {
    static const Unpacker kAll[] = {
        kFloat<F32Weights>,     kFloat<F16Weights>,        kFloat<BF16Weights>,
        quantized<Blocks>()..., quantized<Codebooks>()..., quantized<SuperBlocks>()...,
    };
    const Unpacker* u = kAll;
    while (u->type != type) ++u;
    return *u;
}

const Unpacker& unpacker_of(DType type) {
    return find_unpacker(type, BlockFormats(), CodebookFormats(), SuperBlockFormats());
}

void unpack_row(const Matrix& w, int64_t row, float* out) {
    const Unpacker& u = unpacker_of(w.type);
    const uint8_t* panel = w.panels + panel_start(w.type, w.k, row / kLanes);
    const int64_t block_bytes = interleaved_panels(w.type) * kLanes * row_bytes(w.type, u.block_elements);
    const int lane = static_cast<int>(row % kLanes);
    alignas(64) uint8_t slab[SuperSlab<16, 16>::kBytes];  // of the largest block
    for (int64_t at = 0; at < w.k; at += u.block_elements, panel += block_bytes) {
        u.unpack(panel, u.block_elements, slab);
        if (is_quantized(w.type)) {
            u.read_lane(slab, lane, out + at);
        } else {
            for (int64_t i = 0; i < u.block_elements && at + i < w.k; ++i)
                out[at + i] = read<float>(slab + 64 * i + 4 * lane);
        }
    }
}

}  // namespace chaski::CHASKI_ISA
