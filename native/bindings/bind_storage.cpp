// Key/value storage for Python, which plans use.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "checks.h"
#include "isa.h"
#include "storage.h"
#include "thread_pool.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using Rows = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

bool can_store(int type) {
    auto dtype = static_cast<DType>(type);
    return dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16 || dtype == DType::I16 ||
           dtype == DType::Q8_0 || dtype == DType::Q4_0 || dtype == DType::Q3_0;
}

std::size_t storage_bytes(std::int64_t cells, std::int64_t heads, std::int64_t size, int type,
                          bool in_panels) {
    require(cells > 0 && heads > 0 && size > 0 && cells < (std::int64_t{1} << 31),
            "key/value storage: sizes must be positive");
    require(can_store(type), "key/value storage: type " + std::to_string(type) + " cannot be stored");
    auto dtype = static_cast<DType>(type);
    require(size % find_format(dtype)->elements == 0,
            "key/value storage: heads of " + std::to_string(size) + " are not whole blocks");
    KVStorage shape{nullptr, cells, heads, size, dtype, in_panels};
    return static_cast<std::size_t>(heads * shape.head_bytes()) + kStorageSlack;
}

OwnedStorage make_storage(std::int64_t cells, std::int64_t heads, std::int64_t size, int type,
                          bool in_panels) {
    auto memory = std::make_shared<Region>(storage_bytes(cells, heads, size, type, in_panels));
    return {{memory->data(), cells, heads, size, static_cast<DType>(type), in_panels}, memory};
}

void read_cell(const OwnedStorage& owned, const std::string& isa, std::int64_t cell, const Rows& out) {
    const KVStorage& storage = owned.storage;
    require(cell >= 0 && cell < storage.cells, "key/value storage: no cell " + std::to_string(cell));
    require(out.shape(0) == static_cast<std::size_t>(storage.heads) &&
                out.shape(1) == static_cast<std::size_t>(storage.size),
            "key/value storage: the array has another shape than a cell");
    std::vector<float> scratch(2 * align_up(storage.size));
    ops_of(isa).load(storage, cell, out.data(), scratch.data());
}

using StoredBlock = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>, nb::c_contig>;
using Cells = nb::ndarray<nb::numpy, const std::int32_t, nb::ndim<1>, nb::c_contig>;

// A storage with the same layout as this one, with `cells` cells at `data`.
KVStorage like(const KVStorage& storage, std::int64_t cells, std::byte* data) {
    return {data, cells, storage.heads, storage.size, storage.type, storage.in_panels};
}

std::int64_t block_bytes(const KVStorage& storage, std::int64_t cells) {
    return static_cast<std::int64_t>(align_up(storage.heads * like(storage, cells, nullptr).head_bytes()));
}

std::int64_t blocks_bytes(const std::vector<const OwnedStorage*>& storages, std::int64_t cells) {
    std::int64_t bytes = 0;
    for (const OwnedStorage* owned : storages) bytes += block_bytes(owned->storage, cells);
    return bytes;
}

void require_cells(const Cells& cells, std::int64_t count) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
        require(cells(i) >= 0 && cells(i) < count,
                "key/value storage: no cell " + std::to_string(cells(i)) + " of " + std::to_string(count));
    }
}

// Copies cells of several storages to places of a block, or back. A block contains `room` cells of each
// storage, one storage after the other, each at a multiple of 64 bytes. Each thread takes the next storage
// when it is free.
void copy_block(ThreadPool& pool, const std::string& isa, const std::vector<const OwnedStorage*>& storages,
                const Cells& cells, const StoredBlock& block, const Cells& places, std::int64_t room,
                bool is_write) {
    require(cells.size() == places.size(), "key/value storage: each cell needs one place");
    require(room > 0 && static_cast<std::int64_t>(block.size()) == blocks_bytes(storages, room),
            "key/value storage: the block has another size");
    require_cells(places, room);
    std::size_t scratch_floats = 0;
    std::vector<KVStorage> parts;
    auto* data = reinterpret_cast<std::byte*>(block.data());
    for (const OwnedStorage* owned : storages) {
        require_cells(cells, owned->storage.cells);
        scratch_floats =
            std::max(scratch_floats, static_cast<std::size_t>(cell_scratch_floats(owned->storage)));
        parts.push_back(like(owned->storage, room, data));
        data += block_bytes(owned->storage, room);
    }
    const auto& ops = ops_of(isa);
    const auto count = static_cast<std::int64_t>(cells.size());
    const std::int32_t* cell = cells.data();
    const std::int32_t* place = places.data();
    const Unlocked unlocked;
    std::atomic<std::size_t> next{0};
    pool.run([&](int) {
        std::vector<float> scratch(scratch_floats);
        for (std::size_t i; (i = next.fetch_add(1)) < parts.size();) {
            const KVStorage& storage = storages[i]->storage;
            if (is_write) {
                ops.copy(parts[i], place, storage, cell, count, scratch.data());
            } else {
                ops.copy(storage, cell, parts[i], place, count, scratch.data());
            }
        }
    });
}

}  // namespace

void bind_storage(nb::module_& m) {
    nb::class_<OwnedStorage>(m, "KVStorage")
        .def_prop_ro("bytes", [](const OwnedStorage& s) { return s.memory->size(); })
        .def(
            "touch", [](const OwnedStorage& s) { s.memory->touch(); }, nb::call_guard<Unlocked>())
        .def("read", &read_cell, "isa"_a, "cell"_a, "out"_a);
    m.def("block_bytes", &blocks_bytes, "storages"_a, "room"_a);
    m.def("copy_block", &copy_block, "pool"_a, "isa"_a, "storages"_a, "cells"_a, "block"_a, "places"_a,
          "room"_a, "is_write"_a);
    m.def("kv_storage", &make_storage, "cells"_a, "heads"_a, "size"_a, "type"_a, "in_panels"_a);
    m.def("kv_storage_bytes", &storage_bytes, "cells"_a, "heads"_a, "size"_a, "type"_a, "in_panels"_a);
}

}  // namespace chaski
