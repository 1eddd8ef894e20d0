// The processor features that decide which kernels are used.
#pragma once

namespace chaski {

struct CpuFeatures {
    bool avx2;       // AVX2, FMA, F16C, BMI2, enabled by the system
    bool avx2_vnni;  // also AVX-VNNI
    bool avx512;     // AVX-512 F, BW, DQ, VL and VNNI, enabled by the system
    bool bf16;       // products of bf16, rounded by the rule of matmul.h, with AVX-512 or neon
    bool vbmi;       // with AVX-512: lookup of bytes in two registers
    bool amx;        // also AMX-INT8 with the system's permission
    bool neon;       // the dot product of ARMv8.2
    bool i8mm;       // also matrix products of int8
};

const CpuFeatures& cpu_features();

}  // namespace chaski
