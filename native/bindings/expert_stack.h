// A stack of experts as Python and plans hold it: it keeps the store alive.
#pragma once

#include <memory>

#include "checks.h"
#include "expert_store.h"

namespace chaski {

struct ExpertStack {
    std::shared_ptr<ExpertStore> store;
    int number;

    const ExpertStore::Stack& stack() const { return store->stack(number); }
};

}  // namespace chaski
