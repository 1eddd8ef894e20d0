// Tests attention over storage of every type, in both forms, with chunks computed together and one by one.
#include <numeric>

#include "comparison.h"
#include "memory.h"

namespace chaski {
namespace {

struct Shape {
    DType type;
    std::int64_t group;   // query heads that share keys
    std::int64_t tokens;  // of one tile
    bool is_plain;
    bool is_scattered;
    float cap;
    std::int64_t reach;      // of distances; empty without
    bool is_latent = false;  // whether values are the ends of keys

    // Plain numbers may end in the middle of a vector.
    std::int64_t value_size() const { return is_latent ? 40 : is_quantized(type) ? 96 : 72; }
};

constexpr std::int64_t kHeads = 2;      // of keys
constexpr std::int64_t kHistory = 600;  // more than two chunks
constexpr std::int64_t kKeySize = 64;

struct Storage {
    KVStorage storage;
    Region memory;

    Storage(const Ops& ops, Random& random, DType type, std::int64_t size, bool in_panels)
        : storage{nullptr, kHistory + 40, kHeads, size, type, in_panels},
          memory(kHeads * storage.head_bytes() + kStorageSlack) {
        storage.data = memory.data();
        std::vector<float> scratch(cell_scratch_floats(storage));
        std::vector<std::int32_t> cells(storage.cells);
        std::iota(cells.begin(), cells.end(), 0);
        const std::vector<float> x = random.numbers(storage.cells * kHeads * size, 1.5f);
        ops.store(x.data(), storage, cells.data(), storage.cells, scratch.data());
    }
};

// Runs of cells, some in the middle of a panel.
std::vector<std::int32_t> cells_of(const Shape& shape) {
    std::vector<std::int32_t> cells(kHistory + kStorageSlack);
    std::int32_t next = 0;
    for (std::int64_t i = 0; i < kHistory; ++i) {
        if (shape.is_scattered && i % 23 == 22) next += 1;
        cells[i] = next++;
    }
    return cells;
}

class Work {
   public:
    Work(const Table& table, const Shape& shape)
        : ops_(table.ops),
          shape_(shape),
          random_(shape.tokens),
          keys_(ops_, random_, shape.type, kKeySize, true),
          values_(ops_, random_, shape.type, shape.value_size(), false),
          cells_(cells_of(shape)),
          q_(random_.numbers(shape.tokens * heads() * kKeySize, 2.0f)),
          sinks_(random_.numbers(heads(), 1.0f)),
          distances_(random_.numbers(heads() * (2 * shape.reach + 1), 1.0f)),
          y_(shape.tokens * heads() * shape.value_size()) {
        for (std::int64_t token = 0; token < shape.tokens; ++token) {
            const auto end = static_cast<std::int32_t>(kHistory - shape.tokens + 1 + token);
            spans_.push_back({3, end, 3});  // a window that no longer contains the first tokens
            positions_.push_back(end - 9);
        }
        job_ = {q_.data(),
                y_.data(),
                keys_.storage,
                shape.is_latent ? keys_.storage : values_.storage,
                shape.value_size(),
                cells_.data(),
                spans_.data(),
                sinks_.data(),
                heads(),
                0.125f,
                shape.cap,
                shape.is_plain,
                shape.is_plain ? plain_attention_length(kHistory) : kAttentionChunk,
                positions_.data(),
                shape.reach > 0 ? distances_.data() : nullptr,
                shape.reach};
    }

    Bytes whole() {
        const Region scratch(ops_.attention_scratch(job_, rows()));
        for (std::int64_t head = 0; head < kHeads; ++head) ops_.attention(job_, tile(), head, scratch.data());
        return bytes_of(y_);
    }

    Bytes by_chunks() {
        constexpr std::int64_t kChunks = (kHistory + kAttentionChunk - 1) / kAttentionChunk;
        const std::int64_t size = part_floats(rows(), shape_.value_size());
        const Region scratch(ops_.attention_scratch(job_, rows())), parts(kChunks * size * sizeof(float));
        auto* floats = reinterpret_cast<float*>(parts.data());
        for (std::int64_t head = 0; head < kHeads; ++head) {
            for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
                ops_.attention_chunk(job_, tile(), head, chunk, floats + chunk * size, scratch.data());
            }
            ops_.attention_join(job_, tile(), head, kChunks, floats, scratch.data());
        }
        return bytes_of(y_);
    }

   private:
    std::int64_t heads() const { return kHeads * shape_.group; }
    std::int64_t rows() const { return shape_.tokens * shape_.group; }
    Tile tile() const { return {0, static_cast<std::int32_t>(shape_.tokens)}; }

    const Ops& ops_;
    const Shape shape_;
    Random random_;
    Storage keys_;
    Storage values_;
    std::vector<std::int32_t> cells_;
    std::vector<float> q_;
    std::vector<float> sinks_;
    std::vector<float> distances_;
    std::vector<float> y_;
    std::vector<std::int32_t> positions_;
    std::vector<Span> spans_;
    Attention job_{};
};

void compare_shape(Comparison& compare, const Shape& shape) {
    const std::string what = std::string(find_format(shape.type)->name) + ", " +
                             std::to_string(shape.tokens * shape.group) + " rows" +
                             (shape.is_latent ? ", latent" : "") + (shape.is_plain ? ", plain" : "") +
                             (shape.is_scattered ? ", scattered" : "");
    compare("attention " + what, [&](const Table& table) { return Work(table, shape).whole(); });
    if (shape.is_plain) return;
    compare("attention by chunks " + what,
            [&](const Table& table) { return Work(table, shape).by_chunks(); });
}

}  // namespace

void compare_attention(Comparison& compare) {
    for (DType type :
         {DType::F32, DType::F16, DType::BF16, DType::I16, DType::Q8_0, DType::Q4_0, DType::Q3_0}) {
        compare_shape(compare, {type, 3, 1, false, false, 0.0f, 0});
        compare_shape(compare, {type, 3, 7, false, true, 0.0f, 0});
        compare_shape(compare, {type, 1, 1, true, true, 0.0f, 1000});
        compare_shape(compare, {type, 2, 4, true, false, 20.0f, 0});
        compare_shape(compare, {type, 2, 5, false, true, 0.0f, 7});
        compare_shape(compare, {type, 3, 1, false, false, 0.0f, 0, true});
        compare_shape(compare, {type, 3, 7, false, true, 0.0f, 0, true});
        compare_shape(compare, {type, 2, 4, true, false, 0.0f, 0, true});
    }
}

}  // namespace chaski
