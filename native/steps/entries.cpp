#include "entries.h"

#include <algorithm>

namespace chaski {

namespace {

// The chunks of a span that are cut at multiples of their length.
std::int64_t chunks_of(const Span& span) {
    const std::int64_t end = std::int64_t{span.first} + span.end - span.begin;
    return (end + kAttentionChunk - 1) / kAttentionChunk - span.first / kAttentionChunk;
}

}  // namespace

EntryAttentionStep::EntryAttentionStep(const Ops& ops, int tokens_dim, int history_dim, int entries_dim,
                                       const Attention& window, const GroupEntries& entries,
                                       std::int64_t window_length, std::int64_t longest, int threads)
    : ops_(ops),
      tokens_dim_(tokens_dim),
      history_dim_(history_dim),
      entries_dim_(entries_dim),
      window_(window),
      entries_(entries),
      most_chunks_(window_length / kAttentionChunk + longest / kAttentionChunk + 3),
      longest_(longest),
      threads_(threads),
      attention_bytes_(align_up(ops.attention_scratch(window, window.heads))),
      heads_(window.heads) {}

void EntryAttentionStep::prepare(const Sizes& sizes) {
    for (std::int64_t i = 0; i < sizes[tokens_dim_]; ++i) {
        check_span(window_.spans[i], i, sizes[history_dim_]);
        if (entries_.count == 0) check_span(entries_.spans[i], i, sizes[entries_dim_]);
    }
    heads_ = window_.heads;
    if (sizes[tokens_dim_] < kItemsPerThread * threads_) {  // each thread gets a part of every token
        const std::int64_t share = (window_.heads + threads_ - 1) / threads_;
        heads_ = std::min(window_.heads, (share + kHeads - 1) / kHeads * kHeads);
    }
}

std::size_t EntryAttentionStep::scratch_bytes() const {
    const std::int64_t parts = most_chunks_ * part_floats(window_.heads, window_.value_size);
    return attention_bytes_ + align_up(parts * sizeof(float)) + align_up(longest_ * sizeof(std::int32_t));
}

void EntryAttentionStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    for (std::int64_t i = begin; i < end; ++i) attend(i / parts(), i % parts() * heads_, scratch);
}

void EntryAttentionStep::attend(std::int64_t token, std::int64_t first_head, std::byte* scratch) const {
    Attention job = window_;
    job.heads = std::min(heads_, window_.heads - first_head);
    job.q += (token * window_.heads + first_head) * job.keys.size;
    job.y += (token * window_.heads + first_head) * job.value_size;
    if (job.sinks != nullptr) job.sinks += first_head;
    job.spans += token;
    const std::int64_t size = part_floats(job.heads, job.value_size);
    auto* parts = reinterpret_cast<float*>(scratch + attention_bytes_);
    std::int64_t count = chunks_of(*job.spans);
    for (std::int64_t chunk = 0; chunk < count; ++chunk) {
        ops_.attention_chunk(job, {0, 1}, 0, chunk, parts + chunk * size, scratch);
    }
    auto* cells = reinterpret_cast<std::int32_t*>(parts + most_chunks_ * size);
    const std::int64_t number = entries_.number(token), block = entries_.block;
    const std::int32_t* list = entries_.list(token);
    for (std::int64_t i = 0; i < number; ++i) cells[i] = list[i * block + block - 1];
    const Span seen{0, static_cast<std::int32_t>(number), 0};
    Attention more = job;
    more.keys = more.values = entries_.keys;
    more.cells = cells;
    more.spans = &seen;
    for (std::int64_t chunk = 0; number > 0 && chunk < chunks_of(seen); ++chunk, ++count) {
        ops_.attention_chunk(more, {0, 1}, 0, chunk, parts + count * size, scratch);
    }
    ops_.attention_join(job, {0, 1}, 0, count, parts, scratch);
}

}  // namespace chaski
