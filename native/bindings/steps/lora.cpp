// The table of adapters in memory, and the steps that compute with it.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "../../steps/adapters.h"
#include "../unlocked.h"
#include "steps.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

DType float_type(int type) {
    const auto dtype = static_cast<DType>(type);
    require(dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16,
            "adapters: type " + std::to_string(type) + " is not supported");
    return dtype;
}

std::int64_t element_bytes(DType type) { return type == DType::F32 ? 4 : 2; }

std::size_t packed_bytes(int type, std::int64_t rows, std::int64_t columns) {
    require(rows > 0 && columns > 0, "adapters: no elements");
    return static_cast<std::size_t>(num_panels(rows) * kLanes * columns * element_bytes(float_type(type)));
}

std::byte* place(const Weights& memory, std::size_t offset, std::size_t bytes) {
    return reinterpret_cast<std::byte*>(memory.vector(offset, (bytes + 3) / 4));
}

// Copies a matrix [row][column] into panels.
template <class T>
void pack(const T* from, std::int64_t rows, std::int64_t columns, T* to) {
    constexpr std::int64_t kBlock = 64;  // columns; their lines stay in a cache
    if (rows % kLanes != 0) std::fill_n(to + rows / kLanes * kLanes * columns, kLanes * columns, T{0});
    for (std::int64_t row = 0; row < rows; row += kLanes) {
        for (std::int64_t begin = 0; begin < columns; begin += kBlock) {
            const std::int64_t end = std::min(begin + kBlock, columns);
            for (std::int64_t lane = 0; lane < std::min<std::int64_t>(rows - row, kLanes); ++lane) {
                const T* values = from + (row + lane) * columns;
                T* lines = to + row * columns + lane;
                for (std::int64_t column = begin; column < end; ++column)
                    lines[kLanes * column] = values[column];
            }
        }
    }
}

// True if no value has all the bits of the exponent set, as infinities and NaN have.
template <class T>
bool is_finite(const T* values, std::int64_t count, T exponent) {
    T found = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        found |= static_cast<T>(static_cast<T>(values[i] & exponent) == exponent);
    }
    return found == 0;
}

template <class T>
bool pack_finite(const void* from, std::int64_t rows, std::int64_t columns, T exponent, std::byte* to) {
    const T* values = static_cast<const T*>(from);
    if (!is_finite(values, rows * columns, exponent)) return false;
    pack(values, rows, columns, reinterpret_cast<T*>(to));
    return true;
}

bool pack_lora(const Bytes& values, int type, std::int64_t rows, std::int64_t columns, const Weights& memory,
               std::size_t offset) {
    const DType dtype = float_type(type);
    const std::size_t bytes = packed_bytes(type, rows, columns);
    require(values.size() == static_cast<std::size_t>(rows * columns * element_bytes(dtype)),
            "adapters: a matrix has another size than its shape");
    std::byte* to = place(memory, offset, bytes);
    const Unlocked unlocked;
    const void* from = values.data();
    require(reinterpret_cast<std::uintptr_t>(from) % element_bytes(dtype) == 0,
            "adapters: a matrix is not aligned");
    if (dtype == DType::F32) return pack_finite<std::uint32_t>(from, rows, columns, 0x7f800000, to);
    return pack_finite<std::uint16_t>(from, rows, columns, dtype == DType::F16 ? 0x7c00 : 0x7f80, to);
}

void require_slot(const LoraTable& table, std::int64_t slot) {
    require(slot >= 0 && slot < table.slots(), "adapters: no slot " + std::to_string(slot));
}

void require_matrix(const LoraTable& table, std::int64_t matrix) {
    require(matrix >= 0 && matrix < table.matrices(), "adapters: no matrix " + std::to_string(matrix));
}

void put(LoraTable& table, std::int64_t slot, std::int64_t matrix, std::int64_t rank, std::int64_t rows,
         std::int64_t columns, float scale, int type_a, int type_b, const Weights& memory, std::size_t a,
         std::size_t b) {
    require_slot(table, slot);
    require_matrix(table, matrix);
    table.put(slot, matrix,
              {rank, rows, columns, scale, float_type(type_a), float_type(type_b),
               place(memory, a, packed_bytes(type_a, rank, columns)),
               place(memory, b, packed_bytes(type_b, rows, rank))});
}

void group_lora_rows(PlanBuilder& plan, int dim, int uses_dim, std::size_t lists, std::size_t uses,
                     const std::shared_ptr<LoraTable>& table, std::int64_t max_width) {
    static_assert(sizeof(LoraUse) == 3 * sizeof(std::int32_t));
    plan.add(std::make_unique<GroupLoraRowsStep>(dim, uses_dim, plan.indices(lists, dim),
                                                 plan.rows<LoraUse>(uses, uses_dim, 1), table, max_width,
                                                 plan.new_lora_rows()));
}

void add_adapted_matmul(PlanBuilder& plan, int dim, const OwnedMatrix& weight, std::size_t x,
                        Optional quantized, const Weights* weights, Optional bias, Optional residual,
                        const std::shared_ptr<LoraTable>& table, std::int64_t matrix, int rows,
                        std::int64_t max_width, std::size_t t, std::size_t y) {
    require_matrix(*table, matrix);
    const Matrix& m = weight.matrix;
    const auto sorted = plan.lora_rows(rows);
    const auto terms = std::make_shared<LoraTerms>(plan.floats(t, dim, max_width));
    plan.add(std::make_unique<LoraDownStep>(plan.ops(), table, matrix, sorted, m.k, plan.floats(x, dim, m.k),
                                            terms));
    const Output out{plan.floats(y, dim, m.rows), m.rows, plan.optional_vector(weights, bias, m.rows),
                     nullptr};
    const MatmulStep product(plan.multiplier(m), dim, plan.maximum(dim), weight,
                             plan.activations(m, x, quantized, dim, m.k), out);
    plan.add(std::make_unique<AdaptedMatmulStep>(plan.ops(), dim, product, table, matrix, sorted, m.rows,
                                                 terms, plan.optional_floats(residual, dim, m.rows), out.y));
}

}  // namespace

void bind_lora(nb::module_& m, nb::class_<PlanBuilder>& plan) {
    nb::class_<LoraTable>(m, "LoraTable", "The matrices of adapters in memory, by slot and by matrix.")
        .def(nb::init<std::int64_t, std::int64_t>(), "slots"_a, "matrices"_a)
        .def("put", &put, "slot"_a, "matrix"_a, "rank"_a, "rows"_a, "columns"_a, "scale"_a, "type_a"_a,
             "type_b"_a, "memory"_a, "a"_a, "b"_a, "The caller keeps the memory until the slot is cleared.")
        .def(
            "clear",
            [](LoraTable& table, std::int64_t slot) {
                require_slot(table, slot);
                table.clear(slot);
            },
            "slot"_a);
    m.def("packed_lora_bytes", &packed_bytes, "type"_a, "rows"_a, "columns"_a);
    m.def("pack_lora", &pack_lora, "values"_a, "type"_a, "rows"_a, "columns"_a, "memory"_a, "offset"_a,
          "Copies a matrix into panels; False if some of its values are not finite.");
    plan.def("group_lora_rows", &group_lora_rows, "dim"_a, "uses_dim"_a, "lists"_a, "uses"_a, "table"_a,
             "max_width"_a)
        .def("adapted_matmul", &add_adapted_matmul, "dim"_a, "weight"_a, "x"_a, "quantized"_a,
             "weights"_a.none(), "bias"_a, "residual"_a, "table"_a, "matrix"_a, "rows"_a, "max_width"_a,
             "t"_a, "y"_a);
}

}  // namespace chaski
