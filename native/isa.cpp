#include "isa.h"

#include <stdexcept>

namespace chaski {

namespace portable {
extern const Ops kOps;
Peaks peaks();
}  // namespace portable
#if defined(__x86_64__)
namespace avx2 {
extern const Ops kOps;
Peaks peaks();
}  // namespace avx2
namespace avx512 {
extern const Ops kOps;
Peaks peaks();
}  // namespace avx512
#elif defined(__aarch64__)
namespace neon {
extern const Ops kOps;
Peaks peaks();
}  // namespace neon
namespace neon_i8mm {
Peaks peaks();
}
#endif

const Kernels& kernels_of(const std::string& isa) {
    const Kernels* kernels = select_kernels(isa);
    if (kernels == nullptr) {
        std::string known;
        for (std::string_view name : isa_names()) known.append(" ").append(name);
        throw std::invalid_argument("instruction set " + isa + " is not available here; available:" + known);
    }
    return *kernels;
}

const Ops& ops_of(const std::string& isa) {
    [[maybe_unused]] std::string name = kernels_of(isa).isa;
#if defined(__x86_64__)
    if (name.starts_with("avx512")) return avx512::kOps;
    if (name == "avx2") return avx2::kOps;
#elif defined(__aarch64__)
    if (name.starts_with("neon")) return neon::kOps;
#endif
    return portable::kOps;
}

Peaks peaks_of(const std::string& isa) {
    [[maybe_unused]] std::string name = kernels_of(isa).isa;
#if defined(__x86_64__)
    if (name.starts_with("avx512")) return avx512::peaks();
    if (name == "avx2") return avx2::peaks();
#elif defined(__aarch64__)
    if (name == "neon_i8mm") return neon_i8mm::peaks();
    if (name == "neon") return neon::peaks();
#endif
    return portable::peaks();
}

}  // namespace chaski
