// Attention to a window of tokens, and then to entries that stand for groups of earlier tokens.
// native/steps/entries.h defines the operation.
#include "attend.h"

namespace chaski::CHASKI_ISA {

struct EntryAttention {
    Attention window;
    Attention entries;  // with their own keys, cells and spans of tokens
    int64_t block;      // tokens of a group
    int64_t count;      // of the groups that an indexer chose for each token, or 0
};

// The entries of one token: every `block`-th cell of a list.
struct Groups {
    const int32_t* cells;
    int32_t block;
    Span span;

    CHASKI_INLINE Groups(const EntryAttention& a, int32_t token)
        : block(static_cast<int32_t>(a.block)), span(a.entries.spans + 3 * token) {
        const auto count = static_cast<int32_t>(a.count);
        const int32_t groups = (span.end - span.begin) / block;
        cells = a.entries.cells + (count > 0 ? token * (a.count * block + block - 1) : span.begin);
        span.begin = span.first = 0;
        span.end = count > 0 && count < groups ? count : groups;
    }
    CHASKI_INLINE int32_t cell(int32_t entry) const {
        return cells[static_cast<int64_t>(entry) * block + block - 1];
    }
    CHASKI_INLINE Span seen_by(int32_t) const { return span; }
};

// There is a thread block for each token and tile of kRows query heads.
CHASKI_KERNEL(entry_attention, EntryAttention) {
    const auto token = static_cast<int32_t>(blockIdx.x);
    if (token >= *a.window.n) return;
    const Rows rows = rows_of(a.window, token, 1, 0, static_cast<int>(blockIdx.y));
    const Groups groups(a, token);
    auto& w = *reinterpret_cast<Workspace*>(device::shared());
    load_queries(a.window, rows, w);
    Sums sums(w);
    sums.add(a.window, History{a.window}, rows, sight_of(a.window, rows), w);
    sums.add(a.entries, groups, rows, {0, groups.span.end, 0}, w);
    sums.write(a.window, rows, w);
}

}  // namespace chaski::CHASKI_ISA
