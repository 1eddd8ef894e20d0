// The kernel tables of the instruction sets, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels.h"
#include "ops.h"
#include "peaks.h"

namespace chaski {

// Names of the instruction sets that were built and that this machine can run, slowest first.
std::vector<std::string_view> isa_names();

// "auto" is the fastest set. They throw std::invalid_argument for a name that this build or machine lacks.
const Kernels& kernels_of(const std::string& isa);
const Ops& ops_of(const std::string& isa);
Peaks peaks_of(const std::string& isa);

}  // namespace chaski
