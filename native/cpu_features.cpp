#include "cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace chaski {

#if defined(__x86_64__) && defined(__linux__)
// The process must request permission for tile registers once, because they make its saved state much larger.
static bool tiles_allowed() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
[[maybe_unused]] static bool tiles_allowed() { return false; }
#endif

#if defined(__x86_64__)
#ifdef CHASKI_WITH_AVX512
namespace avx512_bf16 {
bool follows_the_rule();
}
#endif

// Some compilers know the instructions but cannot test for them.
static bool has_avx_vnni() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 1u << 4) != 0;
}

// __builtin_cpu_supports also checks (XGETBV) that the system saves the wide registers.
static CpuFeatures detect() {
    __builtin_cpu_init();
    CpuFeatures f{};
    f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    f.avx2_vnni = f.avx2 && has_avx_vnni();
    f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni");
#ifdef CHASKI_WITH_AVX512
    f.bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16") && avx512_bf16::follows_the_rule();
#endif
    f.vbmi = f.avx512 && __builtin_cpu_supports("avx512vbmi");
    f.amx = f.avx512 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
            __builtin_cpu_supports("gfni") && tiles_allowed();
#ifdef CHASKI_AVX512_MODEL
    f.avx512 = f.bf16 = f.vbmi = f.amx = f.avx2;
#endif
    return f;
}
#elif defined(__aarch64__)
namespace neon_bf16 {
bool follows_the_rule();
}

// Programs cannot query an ARM processor; the system reports its features.
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

}  // namespace chaski
