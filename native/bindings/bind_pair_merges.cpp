// Byte-pair encoding for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "pair_merges.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Integers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::int64_t> span_of(const Integers& values) { return {values.data(), values.size()}; }

StoredStrings strings(const Bytes& data, const Integers& offsets) {
    return {{data.data(), data.size()}, span_of(offsets)};
}

std::size_t not_utf8(const Bytes& data, const Integers& offsets) {
    const StoredStrings all = strings(data, offsets);
    nb::gil_scoped_release release;
    return first_that_is_not_utf8(all);
}

void make(PairMerges* self, const Bytes& tokens, const Integers& token_offsets, const Bytes& merges,
          const Integers& merge_offsets, const Integers& unused, const std::vector<std::string>& byte_tokens,
          bool takes_whole_words, bool is_byte_level) {
    const StoredStrings all_tokens = strings(tokens, token_offsets),
                        all_merges = strings(merges, merge_offsets);
    nb::gil_scoped_release release;
    new (self)
        PairMerges(all_tokens, all_merges, span_of(unused), byte_tokens, {takes_whole_words, is_byte_level});
}

std::vector<std::int32_t> encode(const PairMerges& self, const std::string& text, const Integers& ends) {
    nb::gil_scoped_release release;
    return self.encode(text, span_of(ends));
}

}  // namespace

void bind_pair_merges(nb::module_& m) {
    m.def("first_that_is_not_utf8", &not_utf8, "data"_a, "offsets"_a,
          "Index of the first string that is not UTF-8, or the number of all: each lies behind its length.");
    nb::class_<PairMerges>(m, "PairMerges", "Merges the characters of words to tokens.")
        .def("__init__", &make, "tokens"_a, "token_offsets"_a, "merges"_a, "merge_offsets"_a, "unused"_a,
             "byte_tokens"_a, "takes_whole_words"_a, "is_byte_level"_a)
        .def_prop_ro("fault", &PairMerges::fault,
                     "The first merge that is not one of tokens, if there is one.")
        .def("id_of", &PairMerges::id_of, "token"_a, "The id of a token, or -1.")
        .def("encode", &encode, "text"_a, "ends"_a,
             "The ids of a text that is cut into words; `ends` counts characters up to the end of each.");
}

}  // namespace chaski
