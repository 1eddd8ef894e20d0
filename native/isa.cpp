#include "isa.h"

#include <stdexcept>

namespace chaski {

namespace portable {
extern const Ops kOps;
}
#if defined(CHASKI_X86)
namespace avx2 {
extern const Ops kOps;
}
namespace avx512 {
extern const Ops kOps;
}
#endif

const Kernels& kernels_of(const std::string& isa) {
    const Kernels* kernels = select_kernels(isa);
    if (kernels == nullptr) {
        std::string known;
        for (std::string_view name : isa_names()) known += " " + std::string(name);
        throw std::invalid_argument("instruction set " + isa + " is not available here; available:" + known);
    }
    return *kernels;
}

const Ops& ops_of(const std::string& isa) {
    [[maybe_unused]] std::string name = kernels_of(isa).isa;
#if defined(CHASKI_X86)
    if (name.starts_with("avx512")) return avx512::kOps;
    if (name == "avx2") return avx2::kOps;
#endif
    return portable::kOps;
}

}  // namespace chaski
