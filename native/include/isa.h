// The tables of one instruction set, by the name that `isa_names` gives.
#pragma once

#include <string>

#include "kernels.h"
#include "ops.h"
#include "peaks.h"

namespace chaski {

// Throw std::invalid_argument for a name that this build or this machine does not have.
const Kernels& kernels_of(const std::string& isa);
const Ops& ops_of(const std::string& isa);
Peaks peaks_of(const std::string& isa);

}  // namespace chaski
