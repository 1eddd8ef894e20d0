// The place of the history of one key/value head in memory, in blocks of 64 tokens.
//
// Cells are usually consecutive, and then kernels read the panels of storage in place. Scattered cells are
// copied to scratch memory, line by line, as whole vectors; each line overwrites the excess of the previous
// copy.
#pragma once

#include "storage.h"

namespace chaski::CHASKI_ISA {

constexpr std::int64_t kBlock = 64;  // tokens: a panel for each of four vectors
constexpr int kBlockPanels = kBlock / kLanes;

CHASKI_INLINE std::int64_t padded(std::int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// Floats of a row of values that were keys, see attention_latents.h.
CHASKI_INLINE std::int64_t latent_stride(std::int64_t value_size) { return padded(value_size) + kLanes; }

// Keys of consecutive cells of one panel. The lanes from `lane` on are copied to the lanes from `target` on.
struct Run {
    const std::byte* panel;
    int lane;
    int target;
};

template <int UNIT>
CHASKI_INLINE void copy_line(const Run* runs, int count, std::int64_t line, std::byte* out) {
    for (int i = 0; i < count; ++i) {
        std::memcpy(out + line + runs[i].target * UNIT, runs[i].panel + line + runs[i].lane * UNIT,
                    kLanes * UNIT);
    }
}

template <DType T>
void copy_runs(const Run* runs, int count, std::int64_t size, std::byte* out) {
    constexpr BlockFormat format = *find_format(T);
    std::int64_t line = 0;
    for (std::int64_t block = 0; block < size / format.elements; ++block) {
        for (const Field& field : format.fields) {
            const int unit = key_unit(format, field);
            for (int at = 0; at < field.bytes; at += unit, line += kLanes * unit) {
                if (unit == 4)
                    copy_line<4>(runs, count, line, out);
                else
                    copy_line<2>(runs, count, line, out);
            }
        }
    }
}

// True where cells[i] is base + i.
CHASKI_INLINE bool are_consecutive(const std::int32_t* cells, int count, std::int32_t base) {
    std::int32_t differences = 0;
    for (int i = 0; i < count; ++i) differences |= cells[i] ^ (base + i);
    return differences == 0;
}

// The keys of one head: its panels, one after the other.
template <DType T>
struct Keys {
    const std::byte* panels;
    const float* scales;  // of I16
    std::int64_t size;
    std::int64_t panel_size;

    Keys(const KVStorage& storage, std::int64_t head)
        : panels(storage.panel(head, 0)),
          scales(storage.scales(head)),
          size(storage.size),
          panel_size(panel_bytes(T, size)) {}

    CHASKI_INLINE const std::byte* panel(std::int64_t cell) const {
        return panels + cell / kLanes * panel_size;
    }
};

// The panel whose lanes from..to-1 contain the keys of those entries of `cells`; the other lanes are
// undefined.
template <DType T>
CHASKI_INLINE const std::byte* find_panel(const Keys<T>& keys, const std::int32_t* cells, int from, int to,
                                          std::byte* scratch) {
    const std::int32_t first = cells[from] - from;
    if (first % kLanes == 0 && are_consecutive(cells + from, to - from, cells[from])) {
        return keys.panel(first);
    }
    Run runs[kLanes];
    int count = 0;
    for (int i = from; i < to; ++i) {
        const bool goes_on = i > from && cells[i] == cells[i - 1] + 1 && cells[i] % kLanes != 0;
        if (!goes_on) runs[count++] = {keys.panel(cells[i]), cells[i] % kLanes, i};
    }
    copy_runs<T>(runs, count, keys.size, scratch);
    return scratch;
}

// The panels of a block for the entries from..to-1.
struct KeyBlock {
    const std::byte* panels[kBlockPanels];
    const float* scales[kBlockPanels];   // of I16
    alignas(64) float gathered[kBlock];  // of scattered cells

    template <DType T>
    CHASKI_INLINE void find(const Keys<T>& keys, const std::int32_t* cells, std::int64_t from,
                            std::int64_t to, std::byte* scratch) {
        const std::int64_t bytes = keys.panel_size + kStorageSlack;
        for (int p = 0; p < kBlockPanels; ++p) {
            const auto lane_from = static_cast<int>(from > p * kLanes ? from - p * kLanes : 0);
            const auto lane_to = static_cast<int>(to < (p + 1) * kLanes ? to - p * kLanes : kLanes);
            panels[p] = lane_from < lane_to
                            ? find_panel<T>(keys, cells + p * kLanes, lane_from, lane_to, scratch + p * bytes)
                            : nullptr;
            if (T == DType::I16 && panels[p] != nullptr) {
                const bool is_scattered = panels[p] == scratch + p * bytes;
                find_scales(keys.scales, cells + p * kLanes, p, lane_from, lane_to, is_scattered);
            }
        }
        // For unused entries, the kernels read any other panel of the block.
        const std::int64_t any = from / kLanes;
        for (int p = 0; p < kBlockPanels; ++p) {
            if (panels[p] != nullptr) continue;
            panels[p] = panels[any];
            if (T == DType::I16) scales[p] = scales[any];
        }
    }

   private:
    void find_scales(const float* all, const std::int32_t* cells, int p, int from, int to,
                     bool is_scattered) {
        if (!is_scattered) {
            scales[p] = all + cells[from] - from;
            __builtin_prefetch(scales[p] + kBlock);
            return;
        }
        float* lanes = gathered + p * kLanes;
        for (int i = 0; i < kLanes; ++i) lanes[i] = i >= from && i < to ? all[cells[i]] : 0.0f;
        scales[p] = lanes;
    }
};

}  // namespace chaski::CHASKI_ISA
