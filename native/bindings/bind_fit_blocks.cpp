// The search for scales of K-quants.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "checks.h"
#include "float_environment.h"
#include "isa.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

template <int kElements>
using SubBlocks = nb::ndarray<const float, nb::shape<-1, kElements>, nb::c_contig, nb::device::cpu>;
using Steps = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Fits = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

Fits new_fits(std::size_t n) {
    auto* floats = new float[n];
    return Fits(floats, {n}, nb::capsule(floats, [](void* p) noexcept { delete[] static_cast<float*>(p); }));
}

std::pair<Fits, Fits> affine(const SubBlocks<32>& x, float top, const Steps& intervals,
                             const std::string& isa) {
    const Kernels& kernels = kernels_of(isa);
    Fits scales = new_fits(x.shape(0)), minimums = new_fits(x.shape(0));
    {
        const Unlocked unlocked;
        const UsualFloats usual;
        kernels.fit_affine(x.data(), static_cast<std::int64_t>(x.shape(0)), top, intervals.data(),
                           static_cast<std::int64_t>(intervals.size()), scales.data(), minimums.data());
    }
    return {std::move(scales), std::move(minimums)};
}

Fits symmetric(const SubBlocks<16>& x, const Steps& places, const std::string& isa) {
    const Kernels& kernels = kernels_of(isa);
    Fits scales = new_fits(x.shape(0));
    {
        const Unlocked unlocked;
        const UsualFloats usual;
        kernels.fit_symmetric(x.data(), static_cast<std::int64_t>(x.shape(0)), places.data(),
                              static_cast<std::int64_t>(places.size()), scales.data());
    }
    return scales;
}

}  // namespace

void bind_fit_blocks(nb::module_& m) {
    m.def(
        "fit_affine", &affine, "x"_a, "top"_a, "intervals"_a, "isa"_a = "auto",
        "Scales and minimums of sub-blocks (n, 32): the best grid of levels 0 to top that starts with one of "
        "these numbers of intervals over the range.");
    m.def("fit_symmetric", &symmetric, "x"_a, "places"_a, "isa"_a = "auto",
          "Scales of sub-blocks (n, 16) for levels -32 to 31; places: where the largest magnitude is tried.");
}

}  // namespace chaski
