// Matrix products with any bytes as weights and any bits as activations: all instruction sets compute the
// same bits, and read and write only their own memory.
#include "comparison.h"
#include "input.h"
#include "memory.h"

namespace chaski {
namespace {

// Kernels read whole vectors after the end of rows.
constexpr std::int64_t kSlack = 64;
constexpr std::int64_t kMostRows = 40, kMostTokens = 20;

struct Job {
    const BlockFormat* format;
    std::int64_t rows, k, tokens;
    std::size_t variant;
    std::vector<std::uint8_t> weights;
    std::vector<float> x;

    explicit Job(Input& input)
        : format(&kFormats[input.below(std::size(kFormats))]),
          rows(1 + input.below(kMostRows)),
          k(format->elements == 1 ? 32 * (1 + input.below(4)) : format->elements * (1 + input.below(3))),
          tokens(1 + input.below(kMostTokens)),
          variant(input.byte()),
          weights(rows * row_bytes(format->type, k) + kSlack) {
        if (k % 32 != 0) k = (k + 31) / 32 * 32;
        if (wants_super_blocks(format->type)) k = (k + kSuperElements - 1) / kSuperElements * kSuperElements;
        weights.resize(rows * row_bytes(format->type, k) + kSlack);
        const std::string given = input.text(weights.size() / 2);
        for (std::size_t i = 0; !given.empty() && i < weights.size(); ++i)
            weights[i] = static_cast<std::uint8_t>(given[i % given.size()]);
        x = input.floats(tokens * k);
    }
};

struct Result {
    std::vector<float> product, unpacked;
};

// Memory on the heap, whose ends the sanitizer watches.
class Aligned {
   public:
    explicit Aligned(std::size_t bytes)
        : data_(static_cast<std::byte*>(std::aligned_alloc(64, align_up(bytes + 1)))) {
        std::memset(data_, 0, align_up(bytes + 1));
    }
    ~Aligned() { std::free(data_); }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    std::uint8_t* bytes() const { return reinterpret_cast<std::uint8_t*>(data_); }

   private:
    std::byte* data_;
};

Result compute(const Table& table, const Job& job) {
    const Kernels& kernels = table.kernels;
    const DType type = job.format->type;
    const Aligned panels(matrix_bytes(type, job.rows, job.k) + kSlack);
    const Matrix matrix{type, job.rows, job.k, panels.bytes()};
    kernels.pack(type, job.weights.data(), row_bytes(type, job.k), job.rows, job.k, panels.bytes(), 0,
                 num_panels(job.rows));
    Result result{std::vector<float>(job.tokens * job.rows), std::vector<float>(job.rows * job.k)};
    for (std::int64_t row = 0; row < job.rows; ++row)
        kernels.unpack_row(matrix, row, result.unpacked.data() + row * job.k);

    std::vector<std::int8_t> values(job.x.size());
    std::vector<float> scales(job.x.size() / 32), x = job.x;
    std::vector<std::int16_t> sums(job.x.size() / 16);
    std::vector<SuperScale> supers(wants_super_blocks(type) ? job.x.size() / kSuperElements : 0);
    const Activations activations{values.data(), scales.data(), sums.data(), x.data(),
                                  supers.empty() ? nullptr : supers.data()};
    kernels.quantize_rows(x.data(), job.tokens, job.k, activations);
    const Aligned scratch(kernels.matmul_scratch_bytes(matrix, job.tokens));
    const auto variants = variants_of(type, token_class_of(job.tokens), kernels.stream_tokens);
    kernels.matmul(matrix, 0, num_panels(job.rows), activations, job.tokens,
                   {result.product.data(), job.rows, nullptr, nullptr}, scratch.bytes(),
                   variants[job.variant % variants.size()]);
    return result;
}

}  // namespace
}  // namespace chaski

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace chaski;
    static const Comparison all;
    Input input(data, size);
    const Job job(input);
    const Result expected = compute(all.tables()[0], job);
    for (std::size_t i = 1; i < all.tables().size(); ++i) {
        const Result got = compute(all.tables()[i], job);
        require_equal("unpacked", expected.unpacked, got.unpacked);
        require_equal(job.format->name, expected.product, got.product);
    }
    return 0;
}
