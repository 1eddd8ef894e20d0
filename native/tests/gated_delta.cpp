// Tests the gated delta net with odd sizes: whole, token by token, and with its columns split.
#include "gated_delta.h"

#include <algorithm>

#include "comparison.h"
#include "memory.h"

namespace chaski {
namespace {

struct Shape {
    std::int64_t key_heads, group, key_size, value_size;
    bool is_tiled, corrects;
};

constexpr std::int64_t kTokens = 150;

// States begin with zeros in cell 0; each segment writes the next cell when it reaches a boundary.
class Net {
   public:
    Net(const Table& table, const Shape& shape)
        : ops_(table.ops),
          shape_(shape),
          random_(shape.key_size + shape.value_size),
          columns_((shape.value_size + kLanes - 1) / kLanes * kLanes),
          states_(8, heads(), shape.key_size * columns_),
          keys_(1, shape.key_heads, kDeltaRing * shape.key_size),
          values_(1, heads(), kDeltaRing * columns_),
          decays_(1, heads(), kDeltaRing),
          q_(random_.numbers(kTokens * shape.key_heads * shape.key_size, 0.3f)),
          k_(random_.numbers(q_.size(), 1.0f / static_cast<float>(shape.key_size))),
          v_(random_.numbers(kTokens * heads() * shape.value_size, 1.0f)),
          log_decay_(random_.numbers(kTokens * heads(), 2.0f)),
          beta_(random_.numbers(log_decay_.size(), 1.0f)),
          y_(v_.size()) {
        for (float& g : log_decay_) g = g < 0.0f ? g : -g / 64;
        job_ = {q_.data(),
                k_.data(),
                v_.data(),
                log_decay_.data(),
                beta_.data(),
                y_.data(),
                states_.storage,
                keys_.storage,
                values_.storage,
                decays_.storage,
                shape.value_size,
                shape.is_tiled,
                shape.corrects ? nullptr : beta_.data()};
    }

    // The same tokens in segments that cycle through these lengths; with `parts`, block by block.
    Bytes run(const std::vector<std::int64_t>& lengths, bool in_parts) {
        ChunkSegment segment{};
        for (std::size_t turn = 0; segment.end < kTokens; ++turn) {
            segment.position = segment.begin = segment.end;
            segment.end = static_cast<std::int32_t>(
                std::min<std::int64_t>(segment.begin + lengths[turn % lengths.size()], kTokens));
            const bool passes = segment.last_chunk() > segment.since;
            const std::int32_t next = segment.source % 7 + 1;
            segment.target = passes ? next : 0;
            advance(segment, in_parts);
            if (passes) {
                segment.source = next;
                segment.since = static_cast<std::int32_t>(segment.last_chunk());
            }
        }
        Bytes bytes = bytes_of(y_);
        const std::byte* state = job_.states.row(0, segment.source);
        bytes.insert(bytes.end(), state, state + job_.states.size * sizeof(float));
        return bytes;
    }

   private:
    struct Storage {
        KVStorage storage;
        Region memory;

        Storage(std::int64_t cells, std::int64_t heads, std::int64_t size)
            : storage{nullptr, cells, heads, size, DType::F32, false},
              memory(heads * storage.head_bytes() + kStorageSlack) {
            storage.data = memory.data();
        }
    };

    std::int64_t heads() const { return shape_.key_heads * shape_.group; }

    void advance(const ChunkSegment& segment, bool in_parts) {
        const std::int64_t stop = segment.end_position(), behind = segment.since + kDeltaChunk;
        const Region scratch(ops_.gated_delta_scratch(job_));
        for (std::int64_t head = 0; head < shape_.key_heads; ++head) {
            store_delta_rows(job_, segment, head, segment.position, std::min(behind, stop));
            const std::int64_t step = in_parts ? 1 : job_.blocks();
            for (std::int64_t block = 0; block < job_.blocks(); block += step)
                ops_.gated_delta(job_, segment, head, block, block + step, scratch.data());
            store_delta_rows(job_, segment, head, std::max(behind, segment.last_chunk()), stop);
        }
    }

    const Ops& ops_;
    const Shape shape_;
    Random random_;
    const std::int64_t columns_;
    Storage states_, keys_, values_, decays_;
    std::vector<float> q_, k_, v_, log_decay_, beta_, y_;
    GatedDelta job_{};
};

}  // namespace

void compare_gated_delta(Comparison& compare) {
    for (const Shape& shape : {Shape{2, 2, 32, 20, false, true}, Shape{1, 3, 20, 144, true, true},
                               Shape{2, 1, 64, 64, false, true}, Shape{2, 3, 20, 40, false, false},
                               Shape{1, 2, 64, 64, false, false}}) {
        const std::string what = (shape.corrects ? "gated delta of " : "mamba 2 of ") +
                                 std::to_string(shape.key_size) + " x " + std::to_string(shape.value_size);
        compare(what, [&](const Table& table) { return Net(table, shape).run({kTokens}, false); });
        compare(what + " cut",
                [&](const Table& table) { return Net(table, shape).run({1, 2, 40, 5}, true); });
    }
}

}  // namespace chaski
