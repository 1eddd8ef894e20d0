// The limits of the machine, and its memory nodes, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "isa.h"
#include "machine_limits.h"
#include "memory.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

Peaks::Loop loop_of(const Peaks& peaks, const std::string& type) {
    if (type == "int8") return peaks.int8;
    if (type == "bf16") return peaks.bf16;
    if (type == "fp32") return peaks.fp32;
    throw std::invalid_argument("multiply-adds of type " + type + ": there are int8, bf16 and fp32");
}

std::optional<double> rate(ThreadPool& pool, const std::string& isa, const std::string& type) {
    const Peaks::Loop loop = loop_of(peaks_of(isa), type);
    if (loop == nullptr) return std::nullopt;
    const Unlocked unlocked;
    return multiply_add_rate(pool, loop);
}

double bandwidth(ThreadPool& pool, const std::string& isa, std::int64_t bytes) {
    if (bytes < 1 << 20) throw std::invalid_argument("read_bandwidth: at least 1 MiB must be read");
    const Peaks peaks = peaks_of(isa);
    const Unlocked unlocked;
    return read_bandwidth(pool, peaks, bytes);
}

}  // namespace

void bind_limits(nb::module_& m) {
    m.def("multiply_add_rate", &rate, "pool"_a, "isa"_a, "type"_a,
          "Multiply-adds per second of all threads, at most: int8, bf16 or fp32; None if there are none.");
    m.def("read_bandwidth", &bandwidth, "pool"_a, "isa"_a, "bytes"_a,
          "Bytes per second that all threads read from that much memory, at most.");
    m.def("spread_memory", &spread_memory, "nodes"_a,
          "Lets the pages of large memory that is taken from now on lie on these memory nodes in turns.");
}

}  // namespace chaski
