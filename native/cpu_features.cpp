#include "cpu_features.h"

#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <array>
#include <span>
#include <string_view>

#include "kernels.h"

namespace chaski {

#if defined(__x86_64__) && defined(__linux__)
// Tile registers need a permission, given once to the process, because they make its saved state much larger.
static bool tiles_allowed() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
[[maybe_unused]] static bool tiles_allowed() { return false; }
#endif

#if defined(__x86_64__)
namespace avx512_bf16 {
bool follows_the_rule();
}

// __builtin_cpu_supports also asks the system (XGETBV) whether it saves the wide registers.
static CpuFeatures detect() {
    __builtin_cpu_init();
    CpuFeatures f{};
    f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni");
    f.bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16") && avx512_bf16::follows_the_rule();
    f.amx = f.avx512 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
            __builtin_cpu_supports("gfni") && tiles_allowed();
    return f;
}
#elif defined(__aarch64__)
namespace neon_bf16 {
bool follows_the_rule();
}

// Programs cannot ask an ARM processor; the system says what it found.
#if defined(__linux__)
static bool has(unsigned long list, unsigned long bit) { return (getauxval(list) & bit) != 0; }
static bool has_dot_product() { return has(AT_HWCAP, 1ul << 20); }  // HWCAP_ASIMDDP
static bool has_i8mm() { return has(AT_HWCAP2, 1ul << 13); }        // HWCAP2_I8MM
static bool has_bf16() { return has(AT_HWCAP2, 1ul << 14); }        // HWCAP2_BF16
#elif defined(__APPLE__)
static bool has(const char* name) {
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname(name, &found, &size, nullptr, 0) == 0 && found != 0;
}
static bool has_dot_product() { return has("hw.optional.arm.FEAT_DotProd"); }
static bool has_i8mm() { return has("hw.optional.arm.FEAT_I8MM"); }
static bool has_bf16() { return has("hw.optional.arm.FEAT_BF16"); }
#else
static bool has_dot_product() { return false; }
static bool has_i8mm() { return false; }
static bool has_bf16() { return false; }
#endif

static CpuFeatures detect() {
    CpuFeatures f{};
    f.neon = has_dot_product();
    f.i8mm = f.neon && has_i8mm();
    f.bf16 = f.neon && has_bf16() && neon_bf16::follows_the_rule();
    return f;
}
#else
static CpuFeatures detect() { return {}; }
#endif

const CpuFeatures& cpu_features() {
    static const CpuFeatures features = detect();
    return features;
}

namespace portable {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
extern const Kernels kernels_amx;
}  // namespace avx512
#elif defined(__aarch64__)
namespace neon {
extern const Kernels kernels;
extern const Kernels kernels_i8mm;
}  // namespace neon
#endif

// Tables this machine can run, slowest first.
struct Tables {
    std::array<const Kernels*, 4> kernels{};
    std::array<std::string_view, 4> names{};
    size_t count = 0;

    void add(const Kernels& table) {
        kernels[count] = &table;
        names[count++] = table.isa;
    }

    Tables() {
        add(portable::kernels);
#if defined(__x86_64__)
        if (cpu_features().avx2) add(avx2::kernels);
        if (cpu_features().avx512) add(avx512::kernels);
        if (cpu_features().amx) add(avx512::kernels_amx);
#elif defined(__aarch64__)
        if (cpu_features().neon) add(neon::kernels);
        if (cpu_features().i8mm) add(neon::kernels_i8mm);
#endif
    }
};

static const Tables& tables() {
    static const Tables all;
    return all;
}

std::span<const std::string_view> isa_names() { return {tables().names.data(), tables().count}; }

const Kernels* select_kernels(std::string_view name) {
    const Tables& all = tables();
    if (name == "auto") return all.kernels[all.count - 1];
    for (size_t i = 0; i < all.count; ++i) {
        if (all.names[i] == name) return all.kernels[i];
    }
    return nullptr;
}

}  // namespace chaski
