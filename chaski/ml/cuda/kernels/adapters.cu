// The changes of LoRA adapters to a product, by the rule in native/include/lora.h.
#include "kernel.h"

namespace chaski::CHASKI_ISA {

// The matrices of an adapter for one matrix of the model, in panels of 16 rows. The rank is 0 if the adapter
// does not change that matrix. chaski/ml/cuda/adapter_slots.py writes this struct.
struct Lora {
    const uint8_t* a;  // [rank / 16][columns][16]
    const uint8_t* b;  // [rows / 16][rank][16]
    int64_t rank;
    int64_t type_a;
    int64_t type_b;
    float scale;
    float unused;
};

// An adapter of a row, and the start of its part of t.
struct Use {
    int32_t row;
    int32_t slot;
    int32_t t;
    float scale;
};

struct Adapt {
    const float* x;
    int64_t columns;
    const Lora* table;  // [slot][matrix]
    int64_t matrices;
    int64_t matrix;
    const Use* uses;
    Count num_uses;
    float* t;
    const float* y;
    Count n;
    int64_t width;
    const int32_t* starts;  // [row]: the first of its uses
    float* result;

    CHASKI_INLINE const Lora& pair(const Use& use) const { return table[use.slot * matrices + matrix]; }
};

// Element `i` of a matrix of a type.
template <DType T>
CHASKI_INLINE float element(const uint8_t* matrix, int64_t i) {
    if constexpr (T == DType::F32) return reinterpret_cast<const float*>(matrix)[i];
    const uint16_t half = reinterpret_cast<const uint16_t*>(matrix)[i];
    if constexpr (T == DType::F16) return device::widen_f16(half);
    return device::as_float(static_cast<int32_t>(half << 16));
}

// Calls f with a function that reads an element of a matrix of a type.
template <class F>
CHASKI_INLINE void with_elements(int64_t type, const uint8_t* matrix, const F& f) {
    switch (static_cast<DType>(type)) {
        case DType::F16:
            return f([=](int64_t i) { return element<DType::F16>(matrix, i); });
        case DType::BF16:
            return f([=](int64_t i) { return element<DType::BF16>(matrix, i); });
        default:
            return f([=](int64_t i) { return element<DType::F32>(matrix, i); });
    }
}

// t = A x · scale. There is a thread block for each use and each 16 ranks, and a group for each of the four
// sums.
CHASKI_KERNEL(lora_down, Adapt) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.num_uses) return;
    const Use use = a.uses[blockIdx.x];
    const Lora& pair = a.pair(use);
    const int64_t panel = blockIdx.y;
    if (panel * kLanes >= pair.rank) return;
    auto* sums = reinterpret_cast<float*>(device::shared());
    const float* x = a.x + use.row * a.columns;
    float sum = 0.0f;
    with_elements(pair.type_a, pair.a, [&](const auto& load) {
#pragma unroll 8
        for (int64_t k = group(); k < a.columns; k += 4) {
            sum = device::fma(load((panel * a.columns + k) * kLanes + lane()), x[k], sum);
        }
    });
    sums[group() * kLanes + lane()] = sum;
    barrier();
    if (group() > 0) return;
    const auto of = [&](int j) { return sums[j * kLanes + lane()]; };
    a.t[use.t + panel * kLanes + lane()] = ((of(0) + of(1)) + (of(2) + of(3))) * (use.scale * pair.scale);
}

// y + B t, with a thread for each element.
CHASKI_KERNEL(lora_up, Adapt) {
    const int64_t i = thread(), row = i / a.width, column = i % a.width;
    if (row >= *a.n) return;
    float y = a.y[i];
    for (int at = a.starts[row]; at < a.starts[row + 1]; ++at) {
        const Use use = a.uses[at];
        const Lora& pair = a.pair(use);
        if (pair.rank == 0) continue;
        with_elements(pair.type_b, pair.b, [&](const auto& load) {
#pragma unroll 8
            for (int64_t r = 0; r < pair.rank; ++r) {
                y = device::fma(load((column / kLanes * pair.rank + r) * kLanes + column % kLanes),
                                a.t[use.t + r], y);
            }
        });
    }
    a.result[i] = y;
}

}  // namespace chaski::CHASKI_ISA
