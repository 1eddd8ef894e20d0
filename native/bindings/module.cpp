// The extension module: a list of the bindings.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace chaski {
void bind_codebooks(nb::module_& m);
void bind_experts(nb::module_& m);
void bind_fit_blocks(nb::module_& m);
void bind_limits(nb::module_& m);
void bind_matmul(nb::module_& m);
void bind_pair_merges(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_rounded_rows(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_storage(nb::module_& m);
void bind_weights(nb::module_& m);
}  // namespace chaski

NB_MODULE(_native, m) {
    // nanobind would report objects that live until the process ends as leaks. These are objects that a
    // module or a cache holds and, in a fork, the parent's plans. A fork never destroys these plans, because
    // that would wait for threads that do not exist (chaski/forks.py).
    nb::set_leak_warnings(false);
    m.doc() = "The native core of chaski: kernels, and the plans that run them.";
    chaski::bind_codebooks(m);
    chaski::bind_experts(m);
    chaski::bind_fit_blocks(m);
    chaski::bind_limits(m);
    chaski::bind_matmul(m);
    chaski::bind_rounded_rows(m);
    chaski::bind_sampling(m);
    chaski::bind_storage(m);
    chaski::bind_weights(m);
    chaski::bind_plan(m);
    chaski::bind_pair_merges(m);
}
