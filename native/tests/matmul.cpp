// Tests packing, unpacking, quantizing and multiplying for every type of weights.
#include <limits>

#include "comparison.h"
#include "memory.h"

namespace chaski {
namespace {

// These numbers of tokens cover tiles of all sizes.
constexpr std::int64_t kTokens[] = {1, 2, 5, 7, 16, 40};
constexpr std::int64_t kMostTokens = 40;
// Kernels prefetch after packed bytes, and read whole vectors after the end of a buffer.
constexpr std::int64_t kSlack = 64;

// Random bytes, except for the highest exponent bit of every number, so that scales and weights are below two
// and no result overflows.
std::vector<std::uint8_t> random_rows(const BlockFormat& format, std::int64_t rows, std::int64_t k,
                                      std::uint64_t seed) {
    Random random(seed);
    std::vector<std::uint8_t> bytes(rows * row_bytes(format.type, k) + kSlack);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.word());
    for (std::size_t block = 0; block + format.bytes <= bytes.size(); block += format.bytes) {
        for (const Field& field : format.fields) {
            if (field.bytes == 0 || (field.unit == 4 && format.elements > 1)) continue;
            std::uint8_t& last = bytes[block + field.offset + field.bytes - 1];
            last &= field.unit == 1 ? 0x7f : 0xbf;
        }
    }
    return bytes;
}

class Packed {
   public:
    Packed(const Kernels& kernels, const BlockFormat& format, std::int64_t rows, std::int64_t k)
        : memory_(matrix_bytes(format.type, rows, k)),
          matrix_{format.type, rows, k, reinterpret_cast<std::uint8_t*>(memory_.data())} {
        const std::vector<std::uint8_t> from = random_rows(format, rows, k, rows + k);
        kernels.pack(format.type, from.data(), row_bytes(format.type, k), rows, k,
                     reinterpret_cast<std::uint8_t*>(memory_.data()), 0, num_panels(rows));
    }

    const Matrix& matrix() const { return matrix_; }
    Bytes bytes() const {
        return {memory_.data(), memory_.data() + matrix_bytes(matrix_.type, matrix_.rows, matrix_.k)};
    }

   private:
    Region memory_;
    Matrix matrix_;
};

// Activations of `n` rows with their memory.
struct Rows {
    std::vector<float> floats;
    std::vector<std::int8_t> values;
    std::vector<float> scales;
    std::vector<std::int16_t> sums;
    std::vector<SuperScale> supers;

    Rows(const Kernels& kernels, std::vector<float> x, std::int64_t n, bool in_super_blocks = false)
        : floats(std::move(x)),
          values(floats.size()),
          scales(floats.size() / 32),
          sums(floats.size() / 16),
          supers(in_super_blocks ? floats.size() / kSuperElements : 0) {
        const auto k = static_cast<std::int64_t>(floats.size()) / n;
        if (k % 32 == 0) kernels.quantize_rows(floats.data(), n, k, get());
    }

    Activations get() {
        return {values.data(), scales.data(), sums.data(), floats.data(),
                supers.empty() ? nullptr : supers.data()};
    }
};

Bytes multiply(const Table& table, const BlockFormat& format, std::int64_t rows, std::int64_t k,
               std::int64_t n, bool last_variant) {
    const Packed packed(table.kernels, format, rows, k);
    Random random(7);
    Rows x(table.kernels, random.numbers(n * k, 3.0f), n, wants_super_blocks(format.type));
    const std::vector<float> bias = random.numbers(rows, 1.0f);
    std::vector<float> y = random.numbers(n * rows, 1.0f);  // the residual, too
    const Region scratch(table.kernels.matmul_scratch_bytes(packed.matrix(), n));
    const Output out{y.data(), rows, bias.data(), y.data()};
    const auto variants =
        variants_of(format.type, token_class_of(n), table.kernels.stream_tokens, table.kernels.has_tiles);
    table.kernels.matmul(packed.matrix(), 0, num_panels(rows), x.get(), n, out, scratch.data(),
                         last_variant ? variants.back() : variants.front());
    return bytes_of(y);
}

Bytes unpack(const Table& table, const BlockFormat& format, std::int64_t rows, std::int64_t k) {
    const Packed packed(table.kernels, format, rows, k);
    std::vector<float> y(rows * k);
    for (std::int64_t row = 0; row < rows; ++row)
        table.kernels.unpack_row(packed.matrix(), row, y.data() + row * k);
    return bytes_of(y);
}

void compare_type(Comparison& compare, const BlockFormat& format) {
    const std::string name = format.name;
    // Sizes at which neither rows nor k fill the last panel, the last step along k, or the last group of
    // panels.
    const std::int64_t rows = 16 * 5 + 3, k = format.elements == 1 ? 300 : format.elements == 32 ? 352 : 768;
    compare("pack " + name, [&](const Table& t) { return Packed(t.kernels, format, rows, k).bytes(); });
    compare("unpack " + name, [&](const Table& t) { return unpack(t, format, rows, k); });
    for (std::int64_t n : kTokens) {
        const std::string product = "matmul " + name + ", " + std::to_string(n) + " tokens";
        compare(product, [&](const Table& t) { return multiply(t, format, rows, k, n, false); });
        if (!is_quantized(format.type)) continue;
        compare(product + ", last variant",
                [&](const Table& t) { return multiply(t, format, rows, k, n, true); });
    }
}

// Every half-precision number, including NaNs.
Bytes widen_halves(const Table& table) {
    std::vector<std::uint16_t> halves(1 << 16);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    const Matrix shape{DType::F16, 16, 1 << 12, nullptr};
    const Region panels(matrix_bytes(shape.type, shape.rows, shape.k));
    auto* to = reinterpret_cast<std::uint8_t*>(panels.data());
    table.kernels.pack(shape.type, reinterpret_cast<const std::uint8_t*>(halves.data()),
                       row_bytes(shape.type, shape.k), shape.rows, shape.k, to, 0, 1);
    std::vector<float> y(halves.size());
    for (std::int64_t row = 0; row < shape.rows; ++row) {
        table.kernels.unpack_row({shape.type, shape.rows, shape.k, to}, row, y.data() + row * shape.k);
    }
    return bytes_of(y);
}

// Blocks of ordinary numbers, blocks of extremes, and blocks with one special number among ordinary ones.
Bytes quantize(const Table& table, bool in_super_blocks) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kStrange[] = {0.0f,      -0.0f,      1e-45f,
                                  1e-37f,    3e38f,      -3e38f,
                                  kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
    Random random(11);
    std::vector<float> x = random.numbers(32 * 64, 5.0f);
    for (float strange : kStrange) {
        for (float size : {0.0f, 1e-37f, 1.0f}) {
            for (float value : random.numbers(31, size)) x.push_back(value);
            x.push_back(strange);
        }
    }
    for (int i = -64; i < 64; ++i) x.push_back(static_cast<float>(i) + 0.5f);  // halves round to even
    if (in_super_blocks) {  // among them much larger blocks, and blocks with large sums
        for (float size : {1.0f, 1.0f, 40.0f, 0.001f, 1.0f, 3.0f, 1.0f, 1.0f}) {
            for (float value : random.numbers(32, size)) x.push_back(value);
        }
        for (int i = 0; i < 512; ++i) x.push_back(i % 96 < 80 ? 1.0f : 0.001f);
        x.resize((x.size() + 255) / 256 * 256);
    }
    Rows rows(table.kernels, x, 1, in_super_blocks);
    Bytes all = bytes_of(rows.values);
    for (const Bytes& more : {bytes_of(rows.scales), bytes_of(rows.sums), bytes_of(rows.supers)}) {
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

// All codes and all activations at their extremes, where sums inside a kernel are largest.
Bytes multiply_extremes(const Table& table, std::uint8_t fill, float sign) {
    const std::int64_t k = 64;
    std::vector<std::uint8_t> rows(16 * row_bytes(DType::Q8_0, k) + kSlack, fill);
    for (std::int64_t block = 0; block < 16 * k / 32; ++block) {
        rows[34 * block] = 0x00;
        rows[34 * block + 1] = 0x3c;  // a scale of one
    }
    const Region panels(matrix_bytes(DType::Q8_0, 16, k));
    auto* to = reinterpret_cast<std::uint8_t*>(panels.data());
    table.kernels.pack(DType::Q8_0, rows.data(), row_bytes(DType::Q8_0, k), 16, k, to, 0, 1);
    Rows x(table.kernels, std::vector<float>(kMostTokens * k, sign), kMostTokens);
    const Matrix matrix{DType::Q8_0, 16, k, to};
    std::vector<float> y(kMostTokens * 16);
    const Region scratch(table.kernels.matmul_scratch_bytes(matrix, kMostTokens));
    table.kernels.matmul(matrix, 0, 1, x.get(), kMostTokens, {y.data(), 16, nullptr, nullptr}, scratch.data(),
                         kManyVariants[0]);
    return bytes_of(y);
}

void compare_fits(Comparison& compare) {
    constexpr std::int64_t kRows = 37;
    const std::vector<float> intervals = {13.0f, 14.2f, 15.0f, 16.0f}, places = {31.1f, 32.0f, 32.9f};
    for (float size : {1e-20f, 1.0f, 60000.0f}) {
        compare("scales of sub-blocks", [&](const Table& table) {
            Random random(9);
            const std::vector<float> x = random.numbers(32 * kRows, size);
            std::vector<float> y((4 + kLineSums) * kRows);
            table.kernels.fit_affine({x.data(), nullptr, kRows, 32}, 15.0f, intervals.data(), 4, y.data(),
                                     y.data() + kRows);
            table.kernels.fit_symmetric({x.data(), nullptr, 2 * kRows, 16}, -32.0f, 31.0f, places.data(), 3,
                                        y.data() + 2 * kRows);
            const std::vector<float> weights(x.size(), 1.0f);
            std::vector<std::uint8_t> choices(kRows), levels(x.size());
            table.kernels.choose_lines({x.data(), weights.data(), kRows, 32}, 15.0f,
                                       {y.data(), y.data() + kRows, 1},
                                       {choices.data(), levels.data(), y.data() + 4 * kRows});
            Bytes found = bytes_of(y);
            const Bytes more = bytes_of(levels);
            found.insert(found.end(), more.begin(), more.end());
            return found;
        });
    }
    for (DType type : {DType::IQ1_S, DType::IQ1_M, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S,
                       DType::IQ3_XXS, DType::IQ3_S}) {
        compare(std::string("codebook of ") + find_format(type)->name, [&](const Table& table) {
            const bool is_of_four = type == DType::IQ3_XXS || type == DType::IQ3_S;
            const bool is_short = type == DType::IQ1_M || type == DType::IQ2_XS || type == DType::IQ2_S;
            const int elements = is_short ? 16 : 32, groups = elements / (is_of_four ? 4 : 8);
            Random random(10);
            const std::vector<float> x = random.numbers(32 * kRows, 1.0f);
            const std::vector<float> weights(x.size(), 1.0f);
            const SubBlocks blocks{x.data(), weights.data(), kRows, elements};
            std::vector<float> scales(kRows);
            std::vector<std::uint16_t> entries(kRows * groups);
            std::vector<std::uint8_t> choices(kRows), signs(kRows * elements / 8);
            table.kernels.fit_codebook(type, blocks, scales.data());
            std::vector<float> sums(kRows * kEntrySums);
            table.kernels.choose_entries(type, blocks, scales.data(), 1,
                                         {choices.data(), entries.data(), signs.data(), sums.data()});
            Bytes found = bytes_of(scales);
            for (const Bytes& more : {bytes_of(entries), bytes_of(signs)}) {
                found.insert(found.end(), more.begin(), more.end());
            }
            return found;
        });
    }
}

// Groups of blocks and an incomplete group; zeros of both signs, two extremes of the same magnitude, and
// scales that are too small.
void compare_encoders(Comparison& compare) {
    constexpr std::int64_t kCount = 32 * 37;
    for (DType type : kEncodable) {
        compare(std::string("encoded as ") + find_format(type)->name, [&](const Table& table) {
            Random random(4);
            std::vector<float> x = random.numbers(kCount, 100.0f);
            for (int i = 0; i < 64; ++i) x[i] = i % 3 == 0 ? -0.0f : 0.0f;
            x[70] = 200.0f;
            x[90] = -200.0f;
            for (int i = 128; i < 160; ++i) x[i] *= 1e-41f;
            Bytes out(row_bytes(type, kCount));
            table.kernels.encode_blocks(type, x.data(), kCount, 65504.0f,
                                        reinterpret_cast<std::uint8_t*>(out.data()));
            return out;
        });
    }
}

}  // namespace

void compare_matmul(Comparison& compare) {
    compare_encoders(compare);
    compare_fits(compare);
    for (const BlockFormat& format : kFormats) compare_type(compare, format);
    compare("widen every half", widen_halves);
    compare("quantize", [](const Table& t) { return quantize(t, false); });
    compare("quantize in super-blocks", [](const Table& t) { return quantize(t, true); });
    for (std::uint8_t fill : {0x00, 0x7f, 0x80, 0xff}) {
        for (float sign : {1.0f, -1.0f}) {
            compare("extremes " + std::to_string(fill),
                    [&](const Table& t) { return multiply_extremes(t, fill, sign); });
        }
    }
}

}  // namespace chaski
