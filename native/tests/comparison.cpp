#include "comparison.h"

#include <cstdio>

#include "isa.h"

namespace chaski {

Comparison::Comparison() {
    for (std::string_view name : isa_names()) {
        const std::string isa(name);
        tables_.push_back({isa, kernels_of(isa), ops_of(isa)});
    }
}

void Comparison::compare(const std::string& what, const Table& table, const Bytes& expected,
                         const Bytes& got) {
    if (got == expected) return;
    ++failures_;
    std::size_t at = 0;
    while (at < got.size() && at < expected.size() && got[at] == expected[at]) ++at;
    std::printf("%s: %s differs from %s at byte %zu of %zu\n", what.c_str(), table.isa.c_str(),
                tables_[0].isa.c_str(), at, expected.size());
}

void Comparison::remember(const Bytes& bytes) {
    ++cases_;
    for (std::byte b : bytes) digest_ = (digest_ ^ static_cast<std::uint64_t>(b)) * 0x100000001b3;
}

}  // namespace chaski
