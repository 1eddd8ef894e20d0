#include "isa.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "cpu_features.h"

namespace chaski {

// The functions that each build of the kernels defines; CMakeLists.txt lists the builds.
#define CHASKI_DECLARE(isa)       \
    namespace isa {               \
    extern const Kernels kernels; \
    extern const Ops kOps;        \
    Peaks peaks();                \
    }

#ifdef CHASKI_WITH_PORTABLE
CHASKI_DECLARE(portable)
#endif
#ifdef CHASKI_WITH_AVX2
CHASKI_DECLARE(avx2)
#endif
#ifdef CHASKI_WITH_AVX2_VNNI
CHASKI_DECLARE(avx2_vnni)
#endif
#ifdef CHASKI_WITH_AVX512
CHASKI_DECLARE(avx512)
namespace avx512 {
extern const Kernels kernels_amx;
}
#endif
#ifdef CHASKI_WITH_NEON
CHASKI_DECLARE(neon)
namespace neon {
extern const Kernels kernels_i8mm;
}
namespace neon_i8mm {
Peaks peaks();
}
#endif

namespace {

struct Isa {
    const Kernels* kernels;
    const Ops* ops;
    Peaks (*peaks)();
};

// The sets that were built and that this machine can run, slowest first.
std::vector<Isa> find_isas() {
    std::vector<Isa> found;
    [[maybe_unused]] const CpuFeatures& cpu = cpu_features();
#ifdef CHASKI_WITH_PORTABLE
    found.push_back({&portable::kernels, &portable::kOps, portable::peaks});
#endif
#ifdef CHASKI_WITH_AVX2
    if (cpu.avx2) found.push_back({&avx2::kernels, &avx2::kOps, avx2::peaks});
#endif
#ifdef CHASKI_WITH_AVX2_VNNI
    if (cpu.avx2_vnni) found.push_back({&avx2_vnni::kernels, &avx2_vnni::kOps, avx2_vnni::peaks});
#endif
#ifdef CHASKI_WITH_AVX512
    if (cpu.avx512) found.push_back({&avx512::kernels, &avx512::kOps, avx512::peaks});
    if (cpu.amx) found.push_back({&avx512::kernels_amx, &avx512::kOps, avx512::peaks});
#endif
#ifdef CHASKI_WITH_NEON
    if (cpu.neon) found.push_back({&neon::kernels, &neon::kOps, neon::peaks});
    if (cpu.i8mm) found.push_back({&neon::kernels_i8mm, &neon::kOps, neon_i8mm::peaks});
#endif
    return found;
}

const std::vector<Isa>& isas() {
    static const std::vector<Isa> found = find_isas();
    return found;
}

const Isa& isa_of(const std::string& name) {
    const std::vector<Isa>& all = isas();
    if (name == "auto" && !all.empty()) return all.back();
    const auto found = std::ranges::find(all, name, [](const Isa& isa) { return isa.kernels->isa; });
    if (found != all.end()) return *found;
    std::string known;
    for (std::string_view other : isa_names()) known.append(" ").append(other);
    throw std::invalid_argument("instruction set " + name + " is not available here; available:" + known);
}

}  // namespace

std::vector<std::string_view> isa_names() {
    std::vector<std::string_view> names;
    for (const Isa& isa : isas()) names.emplace_back(isa.kernels->isa);
    return names;
}

const Kernels& kernels_of(const std::string& isa) { return *isa_of(isa).kernels; }
const Ops& ops_of(const std::string& isa) { return *isa_of(isa).ops; }
Peaks peaks_of(const std::string& isa) { return isa_of(isa).peaks(); }

}  // namespace chaski
