// Encoding of floats as blocks, and the search for scales of K-quants, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "checks.h"
#include "float_environment.h"
#include "isa.h"
#include "line_blocks.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using SubBlockRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Steps = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Fits = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

Fits new_fits(std::size_t n) {
    auto* floats = new float[n];
    return Fits(floats, {n}, nb::capsule(floats, [](void* p) noexcept { delete[] static_cast<float*>(p); }));
}

using Values = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Encoded = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

float encode_floats(int type, const Values& x, float limit, const Encoded& out, const std::string& isa) {
    const Kernels& kernels = kernels_of(isa);
    const BlockFormat& format = format_of(type);
    require(std::ranges::find(kEncodable, format.type) != std::end(kEncodable),
            std::string("encode_blocks: there is no encoder for ") + format.name);
    require(x.size() % format.elements == 0 && x.size() / format.elements * format.bytes == out.size(),
            "encode_blocks: out does not hold x");
    const Unlocked unlocked;
    const UsualFloats usual;
    return kernels.encode_blocks(format.type, x.data(), static_cast<std::int64_t>(x.size()), limit,
                                 out.data());
}

SubBlocks rows_of(const SubBlockRows& x, const std::optional<SubBlockRows>& weights) {
    const std::size_t elements = x.shape(1);
    require(!weights || (weights->shape(0) == x.shape(0) && weights->shape(1) == elements),
            "there is one weight for each element");
    return {x.data(), weights ? weights->data() : nullptr, static_cast<std::int64_t>(x.shape(0)),
            static_cast<int>(elements)};
}

bool are_sub_blocks(std::size_t elements) { return elements == 8 || elements == 16 || elements == 32; }

SubBlocks sub_blocks(const SubBlockRows& x, const std::optional<SubBlockRows>& weights) {
    require(are_sub_blocks(x.shape(1)), "sub-blocks have 8, 16 or 32 elements");
    return rows_of(x, weights);
}

std::pair<Fits, Fits> affine(const SubBlockRows& x, float top, const Steps& intervals,
                             const std::optional<SubBlockRows>& weights, const std::string& isa) {
    const Kernels& kernels = kernels_of(isa);
    const SubBlocks blocks = sub_blocks(x, weights);
    Fits scales = new_fits(x.shape(0)), minimums = new_fits(x.shape(0));
    {
        const Unlocked unlocked;
        const UsualFloats usual;
        kernels.fit_affine(blocks, top, intervals.data(), static_cast<std::int64_t>(intervals.size()),
                           scales.data(), minimums.data());
    }
    return {std::move(scales), std::move(minimums)};
}

Fits symmetric(const SubBlockRows& x, float low, float high, const Steps& places,
               const std::optional<SubBlockRows>& weights, const std::string& isa) {
    const std::size_t elements = x.shape(1);
    require(are_sub_blocks(elements) || elements == 64 || elements == 256,
            "rows have 8, 16, 32, 64 or 256 elements");
    const Kernels& kernels = kernels_of(isa);
    const SubBlocks blocks = rows_of(x, weights);
    Fits scales = new_fits(x.shape(0));
    {
        const Unlocked unlocked;
        const UsualFloats usual;
        kernels.fit_symmetric(blocks, low, high, places.data(), static_cast<std::int64_t>(places.size()),
                              scales.data());
    }
    return scales;
}

Fits listed(const SubBlockRows& x, const Steps& values, const Steps& places,
            const std::optional<SubBlockRows>& weights, const std::string& isa) {
    require(values.size() == 16, "fit_listed: there are sixteen values");
    const Kernels& kernels = kernels_of(isa);
    const SubBlocks blocks = sub_blocks(x, weights);
    Fits scales = new_fits(x.shape(0));
    {
        const Unlocked unlocked;
        const UsualFloats usual;
        kernels.fit_listed(blocks, values.data(), places.data(), static_cast<std::int64_t>(places.size()),
                           scales.data());
    }
    return scales;
}

bool has_groups_of_four(DType type) { return type == DType::IQ3_XXS || type == DType::IQ3_S; }

void require_codebook_size(DType type, int elements) {
    require(elements == 32 || (elements == 16 && !has_groups_of_four(type)),
            "codebooks: sub-blocks have 16 or 32 elements, those of IQ3 have 32");
}

Fits codebook_scales(int type, const SubBlockRows& x, const SubBlockRows& weights, const std::string& isa) {
    const Kernels& kernels = kernels_of(isa);
    const SubBlocks blocks = sub_blocks(x, weights);
    require_codebook_size(format_of(type).type, blocks.elements);
    Fits scales = new_fits(x.shape(0));
    {
        const Unlocked unlocked;
        const UsualFloats usual;
        kernels.fit_codebook(format_of(type).type, blocks, scales.data());
    }
    return scales;
}

using Floats = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

Floats element_weights(const SubBlockRows& x, const std::optional<SubBlockRows>& importance) {
    const std::size_t count = x.shape(0), elements = x.shape(1);
    require(elements == 32 || elements == 64 || elements == 128 || elements == 256,
            "element_weights: blocks have 32, 64, 128 or 256 elements");
    const SubBlocks blocks = rows_of(x, importance);
    auto* floats = new float[count * elements];
    nb::capsule owner(floats, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    {
        const Unlocked unlocked;
        const UsualFloats usual;
        weigh_elements(blocks.values, blocks.weights, blocks.count, blocks.elements, floats);
    }
    return Floats(floats, {count, elements}, owner);
}

using EncodedRows = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void lines(int type, const SubBlockRows& x, const SubBlockRows& weights, const Steps& intervals,
           const Steps& places, const EncodedRows& out, const std::string& isa) {
    const Kernels& kernels = kernels_of(isa);
    const BlockFormat& format = format_of(type);
    require(std::ranges::find(kLineTypes, format.type) != std::end(kLineTypes),
            std::string("encode_lines: the sub-blocks of ") + format.name + " have no lines");
    const SubBlocks blocks = rows_of(x, weights);
    require(blocks.elements == format.elements && out.shape(0) == x.shape(0) &&
                out.shape(1) == static_cast<std::size_t>(format.bytes),
            "encode_lines: out does not hold x");
    const LineSteps steps{intervals.data(), places.data(), static_cast<std::int64_t>(intervals.size()),
                          static_cast<std::int64_t>(places.size())};
    const Unlocked unlocked;
    const UsualFloats usual;
    encode_lines(kernels, format.type, blocks.values, blocks.weights, blocks.count, steps, out.data());
}

using Candidates = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Choices = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Entries = nb::ndarray<std::uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using SignBytes = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void codebook_entries(int type, const SubBlockRows& x, const SubBlockRows& weights, const Candidates& scales,
                      const Choices& choices, const Entries& entries, const SignBytes& signs,
                      const Sums& sums, const std::string& isa) {
    const Kernels& kernels = kernels_of(isa);
    const SubBlocks blocks = sub_blocks(x, weights);
    const DType format = format_of(type).type;
    const std::size_t rows = x.shape(0), octets = x.shape(1) / 8,
                      groups = octets * (has_groups_of_four(format) ? 2 : 1);
    require_codebook_size(format, blocks.elements);
    require(scales.shape(0) >= 1 && scales.shape(0) <= 16 && scales.shape(1) == rows,
            "choose_entries: each sub-block has 1 to 16 scales");
    require(choices.size() == rows && entries.shape(0) == rows && entries.shape(1) == groups &&
                signs.shape(0) == rows && signs.shape(1) == octets && sums.shape(0) == rows &&
                sums.shape(1) == kEntrySums,
            "choose_entries: the results do not fit x");
    const Unlocked unlocked;
    const UsualFloats usual;
    kernels.choose_entries(format, blocks, scales.data(), static_cast<std::int64_t>(scales.shape(0)),
                           {choices.data(), entries.data(), signs.data(), sums.data()});
}

}  // namespace

void bind_fit_blocks(nb::module_& m) {
    m.def("encode_blocks", &encode_floats, "type"_a, "x"_a, "limit"_a, "out"_a, "isa"_a = "auto",
          "Writes floats to `out` as F32, F16, BF16, Q4_0 to Q8_0, Q1_0 or NVFP4, and returns their largest "
          "magnitude. If that is above the limit or not a number, the bytes mean nothing.");
    m.def("fit_affine", &affine, "x"_a, "top"_a, "intervals"_a, "weights"_a = nb::none(), "isa"_a = "auto",
          "Scales and minimums of sub-blocks (n, 8, 16 or 32): the best grid of levels 0 to top that starts "
          "with one of these numbers of intervals over the range.");
    m.def("fit_symmetric", &symmetric, "x"_a, "low"_a, "high"_a, "places"_a, "weights"_a = nb::none(),
          "isa"_a = "auto",
          "Scales of rows (n, 8, 16, 32, 64 or 256) for the levels low to high; places: the levels of the "
          "largest magnitude that are tried.");
    m.def("fit_listed", &listed, "x"_a, "values"_a, "places"_a, "weights"_a = nb::none(), "isa"_a = "auto",
          "Scales of sub-blocks (n, 8, 16 or 32) whose levels are sixteen ascending values.");
    m.def("fit_codebook", &codebook_scales, "type"_a, "x"_a, "weights"_a, "isa"_a = "auto",
          "Scales of sub-blocks (n, 16 or 32) for a type with a codebook.");
    m.def("element_weights", &element_weights, "x"_a, "importance"_a = nb::none(),
          "Shares of elements in the error of blocks (n, 32, 64, 128 or 256), by size and importance.");
    m.def("encode_lines", &lines, "type"_a, "x"_a, "weights"_a, "intervals"_a, "places"_a, "out"_a,
          "isa"_a = "auto",
          "Writes blocks (n, 256) to `out` (n, bytes) as Q2_K, Q4_K or Q5_K. intervals: of `fit_affine`, for "
          "lines of sub-blocks. places: of `fit_symmetric`, for scales and minimums of lines.");
    m.def("choose_entries", &codebook_entries, "type"_a, "x"_a, "weights"_a, "scales"_a, "choices"_a,
          "entries"_a, "signs"_a, "sums"_a, "isa"_a = "auto",
          "Writes the number of the best of the scales (tries, sub-blocks), the best entries of a codebook "
          "for it, the signs of each 8 elements (IQ1: 1 for a negative delta), and sums of weight * level * "
          "level and of weight * level * x.");
}

}  // namespace chaski
