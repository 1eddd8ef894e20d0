// Key/value storage as Python owns it.
#pragma once

#include <memory>

#include "memory.h"
#include "ops.h"

namespace chaski {

struct OwnedStorage {
    KVStorage storage;
    std::shared_ptr<Region> memory;
};

}  // namespace chaski
