// The extension module: a list of what is bound where.
#include <nanobind/nanobind.h>
#include <pthread.h>

namespace nb = nanobind;

namespace chaski {
void bind_limits(nb::module_& m);
void bind_matmul(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_storage(nb::module_& m);
void bind_weights(nb::module_& m);
}  // namespace chaski

NB_MODULE(_native, m) {
    // A fork of this process keeps the parent's plans for ever, since destroying them would wait for threads
    // that it does not have (chaski/forks.py). nanobind would list them at its exit as leaks, which nobody
    // can mend.
    pthread_atfork(nullptr, nullptr, [] { nb::set_leak_warnings(false); });
    m.doc() = "The native core of chaski: kernels, and the plans that run them.";
    chaski::bind_limits(m);
    chaski::bind_matmul(m);
    chaski::bind_storage(m);
    chaski::bind_weights(m);
    chaski::bind_plan(m);
}
