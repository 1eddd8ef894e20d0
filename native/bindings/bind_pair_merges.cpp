// Byte-pair encoding for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "pair_merges.h"
#include "unlocked.h"

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
    const Unlocked unlocked;
    return first_that_is_not_utf8(all);
}

// Merges that a background thread builds from the arrays of Python. A caller that needs them waits. Without
// the thread, as in a fork, that caller builds them.
class MergesInMaking {
   public:
    MergesInMaking(Bytes tokens, Integers token_offsets, Bytes merges, Integers merge_offsets,
                   Integers unused, std::vector<std::string> byte_tokens, MergeRules rules)
        : tokens_(std::move(tokens)),
          merges_(std::move(merges)),
          token_offsets_(std::move(token_offsets)),
          merge_offsets_(std::move(merge_offsets)),
          unused_(std::move(unused)),
          byte_tokens_(std::move(byte_tokens)),
          rules_(rules),
          process_(getpid()) {
        std::promise<PairMerges> promise;
        made_ = promise.get_future().share();
        try {
            std::thread([this, promise = std::move(promise)]() mutable {
                try {
                    promise.set_value(make());
                } catch (...) {
                    promise.set_exception(std::current_exception());
                }
            }).detach();
        } catch (const std::system_error&) {
            made_ = {};
        }
    }

    ~MergesInMaking() {
        if (made_.valid() && getpid() == process_) made_.wait();  // the thread reads the arrays
    }

    const PairMerges& get() const {
        const Unlocked unlocked;
        if (made_.valid() && (getpid() == process_ || is_made())) return made_.get();
        std::call_once(once_, [this] { own_ = make(); });
        return *own_;
    }

   private:
    bool is_made() const { return made_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
    PairMerges make() const {
        return PairMerges(strings(tokens_, token_offsets_), strings(merges_, merge_offsets_),
                          span_of(unused_), byte_tokens_, rules_);
    }

    const Bytes tokens_, merges_;
    const Integers token_offsets_, merge_offsets_, unused_;
    const std::vector<std::string> byte_tokens_;
    const MergeRules rules_;
    const pid_t process_;
    std::shared_future<PairMerges> made_;
    mutable std::once_flag once_;
    mutable std::optional<PairMerges> own_;
};

void make(MergesInMaking* self, Bytes tokens, Integers token_offsets, Bytes merges, Integers merge_offsets,
          Integers unused, std::vector<std::string> byte_tokens, bool takes_whole_words, bool is_byte_level) {
    new (self) MergesInMaking(std::move(tokens), std::move(token_offsets), std::move(merges),
                              std::move(merge_offsets), std::move(unused), std::move(byte_tokens),
                              {takes_whole_words, is_byte_level});
}

std::vector<std::int32_t> encode(const MergesInMaking& self, const std::string& text, const Integers& ends) {
    const PairMerges& merges = self.get();
    const Unlocked unlocked;
    return merges.encode(text, span_of(ends));
}

}  // namespace

void bind_pair_merges(nb::module_& m) {
    m.def("first_that_is_not_utf8", &not_utf8, "data"_a, "offsets"_a,
          "Index of the first string that is not UTF-8, or the number of strings. Each follows its length.");
    nb::class_<MergesInMaking>(m, "PairMerges",
                               "Merges the characters of words to tokens. A separate thread builds it; "
                               "calls before that wait.")
        .def("__init__", &make, "tokens"_a, "token_offsets"_a, "merges"_a, "merge_offsets"_a, "unused"_a,
             "byte_tokens"_a, "takes_whole_words"_a, "is_byte_level"_a)
        .def_prop_ro(
            "fault", [](const MergesInMaking& self) { return self.get().fault(); },
            "The first merge that is not one of tokens, if there is one.")
        .def(
            "id_of",
            [](const MergesInMaking& self, std::string_view token) { return self.get().id_of(token); },
            "token"_a, "The id of a token, or -1.")
        .def("encode", &encode, "text"_a, "ends"_a,
             "The ids of a text that is cut into words; `ends` counts characters up to the end of each.");
}

}  // namespace chaski
