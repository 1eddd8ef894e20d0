#include "adapters.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>

namespace chaski {

namespace {

void require(bool condition, const std::string& what) {
    if (!condition) throw std::invalid_argument("adapters: " + what);
}

}  // namespace

void GroupLoraRowsStep::prepare(const Sizes& sizes) {
    const auto num_uses = static_cast<std::int32_t>(sizes[uses_dim_]);
    std::vector<std::int32_t> first;  // of the uses of each list
    for (std::int32_t use = 0; use < num_uses; ++use) {
        const auto [list, slot, scale] = uses_[use];
        const auto last = static_cast<std::int32_t>(first.size()) - 1;
        require(list == last || list == last + 1, "lists are not in order");
        require(slot >= 0 && slot < table_->slots(), "no slot " + std::to_string(slot));
        if (list > last) first.push_back(use);
    }
    first.push_back(num_uses);
    const auto num_lists = static_cast<std::int32_t>(first.size()) - 1;
    struct Entry {
        std::int32_t order, slot, row;
        float scale;
        bool operator<(const Entry& other) const {
            return std::tie(order, slot, row) < std::tie(other.order, other.slot, other.row);
        }
    };
    std::vector<Entry> entries;
    for (std::int32_t row = 0; row < sizes[dim_]; ++row) {
        const std::int32_t list = lists_[row];
        if (list == -1) continue;
        require(list >= 0 && list < num_lists, "no list " + std::to_string(list));
        std::int64_t width = 0;
        for (std::int32_t use = first[list]; use < first[list + 1]; ++use) {
            entries.push_back({use - first[list], uses_[use].slot, row, uses_[use].scale});
            width += table_->width(uses_[use].slot);
        }
        require(width <= max_width_, "those of a row have too many ranks together");
    }
    std::sort(entries.begin(), entries.end());
    rows_->groups.clear();
    rows_->rows.clear();
    rows_->parts.clear();
    std::int32_t t = 0;
    for (const Entry& entry : entries) {
        const auto at = static_cast<std::int32_t>(rows_->rows.size());
        if (rows_->groups.empty() || rows_->groups.back().order != entry.order ||
            rows_->groups.back().slot != entry.slot) {
            rows_->groups.push_back({entry.order, entry.slot, at, 0});
            rows_->parts.push_back({entry.slot, at, 0});
        } else if (rows_->parts.back().count == LoraRows::kTile) {
            rows_->parts.push_back({entry.slot, at, 0});
        }
        rows_->rows.push_back({entry.row, t, entry.scale});
        ++rows_->groups.back().count;
        ++rows_->parts.back().count;
        t += static_cast<std::int32_t>(table_->width(entry.slot));
    }
}

void LoraDownStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t item = begin; item < end; ++item) {
        const LoraRows::Part& part = rows_->parts[item];
        const Lora& pair = table_->at(part.slot, matrix_);
        if (pair.rank == 0) continue;
        std::array<LoraRow, LoraRows::kTile> rows;
        for (std::int32_t i = 0; i < part.count; ++i) {
            const GroupedRow& row = rows_->rows[part.first + i];
            rows[i] = {x_ + row.row * columns_, terms_->t + row.t, nullptr, row.scale * pair.scale};
        }
        const std::size_t after = (item + 1) % rows_->parts.size();
        ops_.lora_down(pair, rows.data(), part.count, table_->at(rows_->parts[after].slot, matrix_).a);
    }
    terms_->missing.fetch_sub(end - begin, std::memory_order_release);
}

void AdaptedMatmulStep::prepare(const Sizes& sizes) {
    product_.prepare(sizes);
    constexpr std::int64_t kBytes = 512 << 10, kLeast = 8;
    std::int64_t panel_bytes = 1;
    for (const LoraGroup& group : rows_->groups) {
        panel_bytes += part_of_b(group.slot, 1) - part_of_b(group.slot, 0);
    }
    most_panels_ = std::max(kBytes / panel_bytes / kLeast, std::int64_t{1}) * kLeast;
}

void AdaptedMatmulStep::run(const Sizes& sizes, std::int64_t begin, std::int64_t end,
                            std::byte* scratch) const {
    product_.multiply(sizes, begin, end, parts_of_b(begin, end), scratch);
    wait_for_terms();
    for (std::int64_t first = begin; first < end; first += kBlock) {
        const std::int64_t last = std::min(first + kBlock, end);
        for (std::size_t i = 0; i < rows_->groups.size(); ++i) add_group(i, first, last);
    }
    if (residual_ == nullptr) return;
    const std::int64_t from = kLanes * begin, count = std::min(kLanes * end, width_) - from;
    for (std::int64_t row = 0; row < sizes[dim_]; ++row) {
        float* y = y_ + row * width_ + from;
        ops_.add(y, residual_ + row * width_ + from, count, y);
    }
}

std::vector<Stretch> AdaptedMatmulStep::parts_of_b(std::int64_t first, std::int64_t last) const {
    std::vector<Stretch> parts;
    for (const LoraGroup& group : rows_->groups) {
        const std::byte* begin = part_of_b(group.slot, first);
        if (table_->at(group.slot, matrix_).rank != 0) {
            parts.push_back({begin, part_of_b(group.slot, last) - begin});
        }
    }
    return parts;
}

void AdaptedMatmulStep::wait_for_terms() const {
    constexpr int kTurns = 1024;
    for (int turn = 1; terms_->missing.load(std::memory_order_acquire) > 0; ++turn) {
        turn % kTurns == 0 ? std::this_thread::yield() : relax();
    }
}

const std::byte* AdaptedMatmulStep::part_of_b(std::int64_t slot, std::int64_t panel) const {
    const Lora& pair = table_->at(slot, matrix_);
    return pair.b + panel * kLanes * pair.rank * (pair.type_b == DType::F32 ? 4 : 2);
}

void AdaptedMatmulStep::add_group(std::size_t index, std::int64_t first, std::int64_t last) const {
    const LoraGroup& group = rows_->groups[index];
    const Lora& pair = table_->at(group.slot, matrix_);
    if (pair.rank == 0) return;
    const bool is_last = index + 1 == rows_->groups.size();
    const std::byte* next = part_of_b(rows_->groups[is_last ? 0 : index + 1].slot, is_last ? last : first);
    for (std::int32_t done = 0; done < group.count; done += LoraRows::kTile) {
        const std::int32_t count = std::min(group.count - done, LoraRows::kTile);
        std::array<LoraRow, LoraRows::kTile> rows;
        for (std::int32_t i = 0; i < count; ++i) {
            const GroupedRow& row = rows_->rows[group.first + done + i];
            rows[i] = {nullptr, terms_->t + row.t, y_ + row.row * width_, 0.0f};
        }
        ops_.lora_up(pair, first, last, rows.data(), count, next);
    }
}

}  // namespace chaski
