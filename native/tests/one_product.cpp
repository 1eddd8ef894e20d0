// one_product ISA TYPE TOKENS [COUNT]: multiplies one matrix by TOKENS tokens, COUNT times, for tools that
// count instructions:
//
//   valgrind --tool=callgrind --toggle-collect='chaski::*::matmul_*' one_product avx2 Q4_K 8
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include "isa.h"
#include "kernels.h"
#include "memory.h"

using namespace chaski;

static DType type_named(const char* name) {
    for (const BlockFormat& format : kFormats) {
        if (std::strcmp(format.name, name) == 0) return format.type;
    }
    std::fprintf(stderr, "one_product: there is no type %s\n", name);
    std::exit(1);
}

int main(int count, char** arguments) try {
    if (count < 4) {
        std::fprintf(stderr, "one_product ISA TYPE TOKENS [COUNT]\n");
        return 1;
    }
    const Kernels& kernels = kernels_of(arguments[1]);
    const DType type = type_named(arguments[2]);
    const std::int64_t n = std::atoll(arguments[3]), rows = 384, k = 2048;
    // Any bytes are valid weights; small bytes do not make scales NaN or infinite.
    std::vector<std::uint8_t> file(static_cast<std::size_t>(rows * row_bytes(type, k)));
    for (std::size_t i = 0; i < file.size(); ++i) file[i] = static_cast<std::uint8_t>(i * 2654435761u >> 26);
    const Region panels(static_cast<std::size_t>(matrix_bytes(type, rows, k)));
    auto* packed = reinterpret_cast<std::uint8_t*>(panels.data());
    kernels.pack(type, file.data(), row_bytes(type, k), rows, k, packed, 0, num_panels(rows));

    std::vector<float> x(static_cast<std::size_t>(n * k)), y(static_cast<std::size_t>(n * rows));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 2654435761u % 2001) / 1000 - 1;
    std::vector<std::int8_t> values(x.size());
    std::vector<float> scales(x.size() / 32);
    std::vector<std::int16_t> sums(x.size() / 16);
    std::vector<SuperScale> supers(wants_super_blocks(type) ? x.size() / kSuperElements : 0);
    const Activations activations{values.data(), scales.data(), sums.data(), x.data(),
                                  supers.empty() ? nullptr : supers.data()};
    kernels.quantize_rows(x.data(), n, k, activations);

    const Matrix matrix{type, rows, k, packed};
    const Output out{y.data(), rows, nullptr, nullptr};
    const Region scratch(static_cast<std::size_t>(kernels.matmul_scratch_bytes(matrix, n)) + kAlignment);
    const Variant& variant =
        variants_of(type, token_class_of(n), kernels.stream_tokens, kernels.has_tiles)[0];
    for (int i = count > 4 ? std::atoi(arguments[4]) : 1; i > 0; --i) {
        kernels.matmul(matrix, 0, num_panels(rows), activations, n, out, scratch.data(), variant);
    }
    std::printf("%lld multiply-adds, %lld bytes of weights\n", static_cast<long long>(n * rows * k),
                static_cast<long long>(matrix_bytes(type, rows, k)));
} catch (const std::exception& error) {
    std::fprintf(stderr, "one_product: %s\n", error.what());
    return 1;
}
