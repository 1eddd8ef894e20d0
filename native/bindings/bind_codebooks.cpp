// The codebooks of the IQ1, IQ2 and IQ3 types, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>

#include "checks.h"
#include "codebooks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using Words = nb::ndarray<nb::numpy, const std::uint16_t, nb::ndim<1>>;

template <std::size_t kEntries>
Words words_of(const std::uint16_t (&words)[kEntries]) {
    return Words(words, {kEntries}, nb::handle());  // they live as long as the process
}

Words codebook(int type) {
    switch (static_cast<DType>(type)) {
        case DType::IQ1_S:
        case DType::IQ1_M:
            return words_of(kIQ1_SWords);
        case DType::IQ2_XXS:
            return words_of(kIQ2_XXSWords);
        case DType::IQ2_XS:
            return words_of(kIQ2_XSWords);
        case DType::IQ2_S:
            return words_of(kIQ2_SWords);
        case DType::IQ3_XXS:
            return words_of(kIQ3_XXSWords);
        case DType::IQ3_S:
            return words_of(kIQ3_SWords);
        default:
            require(false, "codebook: type " + std::to_string(type) + " has none");
            return {};
    }
}

}  // namespace

void bind_codebooks(nb::module_& m) {
    m.def(
        "codebook", &codebook, "type"_a,
        "The entries of a type's codebook, as words of levels: 8 of 2 bits (IQ1, IQ2) or 4 of 3 bits (IQ3).");
}

}  // namespace chaski
