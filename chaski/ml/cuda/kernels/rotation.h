// The rotation of heads by groups of 16 lanes; the rule is in hadamard.h.
#pragma once

#include "hadamard.h"
#include "kernel.h"

namespace chaski::CHASKI_ISA {

// Rotates the kBlock elements from x on into y, which may be x. A lane reads and writes every 16th element.
// Both groups of a warp must call it; a group whose block does not exist writes nothing.
template <int kBlock>
CHASKI_INLINE void rotate_block(const float* x, bool exists, float* y) {
    constexpr int kCount = kBlock / kLanes;
    float v[kCount];
    for (int i = 0; i < kCount; ++i) v[i] = x[i * kLanes + lane()];
    for (int h = 1; h < kLanes; h *= 2) {
        for (float& own : v) {
            const float other = device::from_thread(own, h);
            own = lane() & h ? other - own : own + other;
        }
    }
    for (int h = 1; h < kCount; h *= 2) {
        for (int i = 0; i < kCount; ++i) {
            if (i & h) continue;
            const float first = v[i], second = v[i + h];
            v[i] = first + second;
            v[i + h] = first - second;
        }
    }
    for (int i = 0; i < kCount && exists; ++i) y[i * kLanes + lane()] = v[i] * hadamard_scale(kBlock);
}

}  // namespace chaski::CHASKI_ISA
