// Joins the sums of the chunks of a history by the rule in ops.h: in order, each with its own maximum.
#include "attention.h"

namespace chaski::CHASKI_ISA {

constexpr int kHeads = CHASKI_HEADS;  // heads whose elements form whole blocks that products read
constexpr int kElements = kHeads * kValueSize, kPart = kValueSize + 2;
constexpr int kJoined = 128;  // chunks whose factors are kept at a time
constexpr int kAhead = 16;    // chunks whose elements are requested at a time

// The numbers of a chunk for one head, in shared memory.
struct Chunk {
    float maximum;
    float total;
    float before;  // factor of the sums of previous chunks, or -1 if nothing of this chunk is seen
    float added;   // factor of the sums of this chunk
};
struct Joining {
    alignas(16) float row[kElements];
    Chunk chunks[kJoined][kHeads];
    float maxima[kHeads];  // of all chunks whose factors are no longer kept
};

// Finds the factors of one chunk, which depend on the maxima of previous chunks.
CHASKI_INLINE void find_factors(Joining& w, int number, int head) {
    float maximum = w.maxima[head];
#pragma unroll 8
    for (int i = 0; i < number; ++i) {
        const float next = w.chunks[i][head].maximum;
        if (next != -infinity()) maximum = max(splat(maximum), splat(next)).v;
    }
    Chunk& own = w.chunks[number][head];
    Known known{maximum};
    const bool is_seen = known.join(own.maximum, own.total);
    own.before = is_seen ? known.before : -1.0f;
    own.added = known.added;
}

// There is a thread block for each token and some neighbouring heads.
CHASKI_KERNEL(attention_join, Attention) {
    const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y) * kHeads;
    const int first = a.starts[token], count = a.starts[token + 1] - first;
    if (token >= *a.n) return;
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int stride = static_cast<int>(a.heads) * kPart;
    const float* parts = a.parts + static_cast<int64_t>(first) * stride + head * kPart;
    auto& w = *reinterpret_cast<Joining*>(device::shared());
    for (int base = 0; base < kElements; base += threads) {
        const int i = base + thread, own = i / kValueSize;
        const bool exists = i < kElements;
        const float* of_element = parts + (exists ? own * kPart + i % kValueSize : 0);
        float next[kAhead];
        const auto ask = [&](int from) {
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                next[j] = from + j < count ? of_element[static_cast<int64_t>(from + j) * stride] : 0.0f;
            }
        };
        ask(0);
        if (base > 0) barrier();
        if (thread < kHeads) w.maxima[thread] = -infinity();
        float maximum = -infinity(), total = 0.0f, sum = 0.0f;
        for (int begin = 0; begin < count; begin += kJoined) {
            const int known = count - begin < kJoined ? count - begin : kJoined;
            for (int j = thread; j < known * kHeads; j += threads) {
                const float* level = parts + static_cast<int64_t>(begin + j / kHeads) * stride +
                                     j % kHeads * kPart + kValueSize;
                w.chunks[j / kHeads][j % kHeads].maximum = level[0];
                w.chunks[j / kHeads][j % kHeads].total = level[1];
            }
            barrier();
            for (int j = thread; j < known * kHeads; j += threads) find_factors(w, j / kHeads, j % kHeads);
            barrier();
            for (int from = 0; from < known; from += kAhead) {
                float part[kAhead];
#pragma unroll
                for (int j = 0; j < kAhead; ++j) part[j] = next[j];
                ask(begin + from + kAhead);
#pragma unroll
                for (int j = 0; j < kAhead; ++j) {
                    if (from + j >= known || !exists) continue;
                    const Chunk chunk = w.chunks[from + j][own];
                    if (chunk.before < 0.0f) continue;
                    sum = device::fma(part[j], chunk.added, sum * chunk.before);
                    total = total * chunk.before + chunk.total * chunk.added;
                    maximum = max(splat(maximum), splat(chunk.maximum)).v;
                }
            }
            barrier();
            if (exists && i % kValueSize == 0) w.maxima[own] = maximum;
        }
        if (!exists) continue;
        w.row[i] = sum * last_factor(a, head + own, maximum, total);
        a.y[(static_cast<int64_t>(token) * a.heads + head) * kValueSize + i] = w.row[i];
    }
    if (a.quantized.values == nullptr) return;
    barrier();
    float x[kEach] = {};
    const bool exists = thread * kEach < kElements;
    if (exists) load_each(w.row + thread * kEach, x);
    quantize(x, (token * a.heads + head) * kValueSize + thread * kEach, exists, a.quantized);
}

}  // namespace chaski::CHASKI_ISA
