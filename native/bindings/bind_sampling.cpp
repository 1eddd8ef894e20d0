// Exponentials and logarithms of logits with the same bits on every machine, and the rounding mode of
// Python's threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "float_environment.h"
#include "isa.h"
#include "logarithm.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using FloatRow = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DoubleRow = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> owned_row(T* elements, std::size_t size) {
    nb::capsule owner(elements, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(elements, {size}, owner);
}

const Ops& best_ops() {
    static const Ops& found = ops_of("auto");
    return found;
}

nb::ndarray<nb::numpy, float, nb::ndim<1>> exponentials(const FloatRow& x, float highest) {
    auto* y = new float[x.size()];
    best_ops().exponentials(x.data(), highest, static_cast<std::int64_t>(x.size()), y);
    return owned_row(y, x.size());
}

double exponential_sum(const FloatRow& x, float highest) {
    return best_ops().exponential_sum(x.data(), highest, static_cast<std::int64_t>(x.size()));
}

nb::ndarray<nb::numpy, double, nb::ndim<1>> logarithms(const DoubleRow& x) {
    auto* y = new double[x.size()];
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = natural_logarithm(x.data()[i]);
    return owned_row(y, x.size());
}

}  // namespace

void bind_sampling(nb::module_& m) {
    using Usual = nb::call_guard<UsualFloats>;
    m.def("exponentials", &exponentials, "x"_a, "highest"_a, Usual(),
          "e to x - highest, of numbers (n,) up to that.");
    m.def("exponential_sum", &exponential_sum, "x"_a, "highest"_a, Usual(),
          "The sum of these, in double precision.");
    m.def("logarithm", &natural_logarithm, "x"_a, Usual(),
          "The natural logarithm of a normal number above 0.");
    m.def("logarithms", &logarithms, "x"_a, Usual(), "The natural logarithms of such numbers (n,).");
    m.def(
        "use_float_mode",
        [](std::optional<FloatMode> mode) {
            const FloatMode before = float_mode();
            set_float_mode(mode.value_or(kUsualMode));
            return before;
        },
        "mode"_a = nb::none(),
        "Sets how this thread rounds; None: as usual, to nearest with denormal numbers -> the mode before.");
}

}  // namespace chaski
