// Attention over scattered cells. If keys and values are integers that fill whole operands of tensor
// instructions, attention_i16.cu is used instead.
#include "attend.h"
#include "join.h"

namespace chaski::CHASKI_ISA {

#if CHASKI_SPLIT

// There is a thread block for each task, key/value head, and tile of kRows query heads.
CHASKI_KERNEL(attention_chunk, Attention) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.num_tasks) return;
    const int32_t token = a.tasks[2 * blockIdx.x], chunk = a.tasks[2 * blockIdx.x + 1];
    const Rows rows = rows_of(a, token, 1, blockIdx.y, static_cast<int>(blockIdx.z));
    const Span span(a.spans + 3 * token);
    auto& w = *reinterpret_cast<Workspace*>(device::shared());
    load_queries(a, rows, w);
    attend(a, History{a}, rows, span.start() + chunk * kChunk, span.begin, span.end, w);
    constexpr int kPart = kValueSize + 2;
    float* parts = a.parts + (static_cast<int64_t>(blockIdx.x) * a.heads + rows.head) * kPart;
    for (int i = static_cast<int>(threadIdx.x); i < rows.count() * kValueSize; i += kChunk) {
        parts[i / kValueSize * kPart + i % kValueSize] = sum_of_chunk(i / kValueSize, i % kValueSize, w);
    }
    if (static_cast<int>(threadIdx.x) < rows.count()) {
        float* own = parts + threadIdx.x * kPart + kValueSize;
        own[0] = w.maxima[threadIdx.x];
        own[1] = w.totals[threadIdx.x];
    }
    join_if_last(a, rows);
}

#else

// There is a thread block for each tile of tokens, key/value head, and tile of kRows query heads.
CHASKI_KERNEL(attention, Attention) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.num_tiles) return;
    const int32_t* tile = a.tiles + 2 * blockIdx.x;
    const Rows rows = rows_of(a, tile[0], tile[1], blockIdx.y, static_cast<int>(blockIdx.z));
    const Sight sight = sight_of(a, rows);
    auto& w = *reinterpret_cast<Workspace*>(device::shared());
    load_queries(a, rows, w);
    Sums sums(w);
    sums.add(a, History{a}, rows, sight, w);
    sums.write(a, rows, w);
}

#endif

}  // namespace chaski::CHASKI_ISA
