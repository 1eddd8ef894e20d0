// The selective scan: the rule of order is in selective_scan.h.
#include "selective_scan.h"

#include <algorithm>

#include "attention_kernel.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

// 16 channels, or the last `lanes` of them. The state of the target row changes from token to token.
CHASKI_INLINE void scan(const SelectiveScan& job, const Segment& segment, std::int64_t channel, int lanes) {
    const std::int64_t channels = job.channels(), size = job.state_size();
    auto state = [&](std::int64_t n, std::int32_t cell) {
        return reinterpret_cast<float*>(job.states.row(n, cell)) + channel;
    };
    for (std::int64_t n = 0; n < size; ++n) {
        store_f32(state(n, segment.target), load_f32(state(n, segment.source), lanes), lanes);
    }
    for (std::int64_t t = segment.begin; t < segment.end; ++t) {
        const F32x16 dt = load_f32(job.dt + t * channels + channel, lanes);
        const F32x16 x = dt * load_f32(job.x + t * channels + channel, lanes);
        F32x16 y = splat(0.0f);
        for (std::int64_t n = 0; n < size; ++n) {
            const F32x16 decay = exp(dt * load_f32(job.a + n * channels + channel, lanes));
            float* place = state(n, segment.target);
            const F32x16 s = fma(decay, load_f32(place, lanes), x * splat(job.b[t * size + n]));
            store_f32(place, s, lanes);
            y = fma(s, splat(job.c[t * size + n]), y);
        }
        store_f32(job.y + t * channels + channel, y, lanes);
    }
}

}  // namespace

void selective_scan(const SelectiveScan& job, const Segment& segment, std::int64_t begin, std::int64_t end) {
    for (std::int64_t channel = begin; channel < end; channel += kLanes) {
        scan(job, segment, channel, static_cast<int>(std::min<std::int64_t>(end - channel, kLanes)));
    }
}

}  // namespace chaski::CHASKI_ISA
