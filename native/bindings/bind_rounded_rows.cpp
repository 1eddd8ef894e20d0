// Rows of activations in the format that machines send each other.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "checks.h"
#include "float_environment.h"
#include "isa.h"
#include "rounded_rows.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using FloatsIn = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using BytesIn = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using BytesOut = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

void require_rows(std::int64_t k, bool in_super_blocks) {
    const int multiple = in_super_blocks ? kSuperElements : 32;
    require(k > 0 && k % multiple == 0, "rounded rows: " + std::to_string(k) +
                                            " elements are no multiple of " + std::to_string(multiple));
}

BytesOut rounded(const FloatsIn& x, bool in_super_blocks, const std::string& isa) {
    const auto n = static_cast<std::int64_t>(x.shape(0)), k = static_cast<std::int64_t>(x.shape(1));
    require_rows(k, in_super_blocks);
    const Kernels& kernels = kernels_of(isa);
    auto* bytes = new std::vector<std::uint8_t>();
    nb::capsule owner(bytes, [](void* p) noexcept { delete static_cast<std::vector<std::uint8_t>*>(p); });
    {
        const Unlocked unlocked;
        const UsualFloats usual;
        *bytes = rounded_rows(kernels, x.data(), n, k, in_super_blocks);
    }
    return BytesOut(bytes->data(), {bytes->size()}, owner);
}

FloatsOut unrounded(const BytesIn& bytes, std::int64_t n, std::int64_t k, bool in_super_blocks) {
    require_rows(k, in_super_blocks);
    require(n >= 0, "rounded rows: less than none");
    auto* floats = new float[n * k];
    nb::capsule owner(floats, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    bool is_whole;
    {
        const Unlocked unlocked;
        const UsualFloats usual;
        is_whole = unrounded_rows({bytes.data(), bytes.size()}, n, k, in_super_blocks, floats);
    }
    require(is_whole, "rounded rows: " + std::to_string(bytes.size()) + " bytes are not those of " +
                          std::to_string(n) + " rows of " + std::to_string(k));
    return FloatsOut(floats, {static_cast<std::size_t>(n), static_cast<std::size_t>(k)}, owner);
}

}  // namespace

void bind_rounded_rows(nb::module_& m) {
    m.def("rounded_rows", &rounded, "x"_a, "in_super_blocks"_a, "isa"_a = "auto",
          "The bytes of rows (n, k) as products with quantized matrices round them. Rows that would not be "
          "rounded again as they were are floats there.");
    m.def("unrounded_rows", &unrounded, "data"_a, "n"_a, "k"_a, "in_super_blocks"_a,
          "Rows (n, k) that are rounded as those whose bytes these are. Raises ValueError for other bytes.");
}

}  // namespace chaski
