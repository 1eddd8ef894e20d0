#include "pair_merges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <queue>
#include <random>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace chaski {
namespace {

constexpr std::uint32_t kFree = ~std::uint32_t{0};
constexpr std::size_t kPrefixBytes = 8;
constexpr std::size_t kMergesAtOnce = 32;
// Repeated words of one text are merged once; rare long words are not worth the memory.
constexpr std::size_t kRememberedBytes = 64, kRememberedWords = 1 << 16;

std::uint64_t folded_product(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{a} * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// At most two thirds of the slots are used, so that searches are short and end.
std::size_t slots_for(std::size_t count) { return std::bit_ceil(count + count / 2 + 1); }

// Number of bytes of the character that begins here, or 0 for an invalid one; `size` bytes are available.
std::size_t character_bytes(const unsigned char* at, std::size_t size) {
    const unsigned char lead = at[0];
    if (lead < 0x80) return 1;
    const std::size_t count = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || count > size) return 0;
    for (std::size_t i = 1; i < count; i++)
        if ((at[i] & 0xC0) != 0x80) return 0;
    // Overlong encodings, halves of surrogate pairs, and values above U+10FFFF are invalid.
    if (lead == 0xE0 && at[1] < 0xA0) return 0;
    if (lead == 0xED && at[1] > 0x9F) return 0;
    if (lead == 0xF0 && at[1] < 0x90) return 0;
    if (lead == 0xF4 && at[1] > 0x8F) return 0;
    return count;
}

std::size_t first_character(std::string_view text) {
    const std::size_t count =
        character_bytes(reinterpret_cast<const unsigned char*>(text.data()), text.size());
    if (count == 0) throw std::invalid_argument("the text is not UTF-8");
    return count;
}

bool is_utf8(std::string_view text) {
    const auto* at = reinterpret_cast<const unsigned char*>(text.data());
    for (std::size_t left = text.size(); left > 0;) {
        const std::size_t count = character_bytes(at, left);
        if (count == 0) return false;
        at += count;
        left -= count;
    }
    return true;
}

}  // namespace

KeyedHash::KeyedHash() {
    std::random_device random;
    const auto word = [&] { return std::uint64_t{random()} << 32 | random(); };
    factor_ = word() | 1;
    start_ = word();
}

std::size_t KeyedHash::operator()(std::uint64_t value) const {
    return folded_product(folded_product(value ^ start_, factor_) ^ start_, factor_);
}

std::size_t KeyedHash::operator()(std::string_view text) const {
    std::uint64_t result = start_ ^ text.size();
    while (text.size() >= 8) {
        std::uint64_t part;
        std::memcpy(&part, text.data(), 8);
        result = folded_product(result ^ part, factor_) + start_;
        text.remove_prefix(8);
    }
    std::uint64_t rest = 0;
    std::memcpy(&rest, text.data(), text.size());
    return folded_product(folded_product(result ^ rest, factor_) + start_, factor_);
}

StoredStrings::StoredStrings(std::span<const std::uint8_t> data, std::span<const std::int64_t> offsets)
    : data_(data), offsets_(offsets) {
    if (offsets.empty()) throw std::invalid_argument("strings: there are no offsets");
    const auto size = static_cast<std::int64_t>(data.size());
    if (offsets.front() < 0 || offsets.back() > size) throw std::invalid_argument("strings: beyond the data");
    for (std::size_t i = 1; i < offsets.size(); i++)
        if (offsets[i] - offsets[i - 1] < static_cast<std::int64_t>(kPrefixBytes))
            throw std::invalid_argument("strings: no place for a length");
}

std::string_view StoredStrings::operator[](std::size_t index) const {
    const auto begin = static_cast<std::size_t>(offsets_[index]) + kPrefixBytes;
    return {reinterpret_cast<const char*>(data_.data()) + begin,
            static_cast<std::size_t>(offsets_[index + 1]) - begin};
}

std::size_t first_that_is_not_utf8(const StoredStrings& strings) {
    for (std::size_t i = 0; i < strings.size(); i++)
        if (!is_utf8(strings[i])) return i;
    return strings.size();
}

TokenIds::TokenIds(const StoredStrings& tokens) : places_(slots_for(tokens.size()), {kFree, 0, -1}) {
    for (std::size_t i = 0; i < tokens.size(); i++) {
        const std::string_view token = tokens[i];
        Place& found = place(token, hash_(token));
        if (found.begin == kFree) {
            found.begin = static_cast<std::uint32_t>(spellings_.size());
            found.size = static_cast<std::uint32_t>(token.size());
            spellings_ += token;
        }
        found.id = static_cast<std::int32_t>(i);
    }
}

std::size_t TokenIds::begin_find(std::string_view token) const {
    const std::size_t hash = hash_(token);
    __builtin_prefetch(&places_[hash & (places_.size() - 1)]);
    return hash;
}

std::int32_t TokenIds::find(std::string_view token, std::size_t hash) const { return place(token, hash).id; }

// The place of a token, or the free place where it would go.
const TokenIds::Place& TokenIds::place(std::string_view token, std::size_t hash) const {
    const std::size_t mask = places_.size() - 1;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
        const Place& found = places_[at];
        if (found.begin == kFree) return found;
        if (found.size == token.size() &&
            std::memcmp(&spellings_[found.begin], token.data(), token.size()) == 0)
            return found;
    }
}

TokenIds::Place& TokenIds::place(std::string_view token, std::size_t hash) {
    return const_cast<Place&>(std::as_const(*this).place(token, hash));
}

PairMerges::PairMerges(const StoredStrings& tokens, const StoredStrings& merges,
                       std::span<const std::int64_t> unused, const std::vector<std::string>& byte_tokens,
                       MergeRules rules)
    : ids_(tokens), rules_(rules), byte_tokens_(byte_tokens) {
    if (byte_tokens.size() != 256) throw std::invalid_argument("there are 256 bytes, each with a token");
    for (const std::int64_t id : unused) {
        if (id < 0 || static_cast<std::size_t>(id) >= tokens.size())
            throw std::invalid_argument("an id is no token's");
        ids_.forget(tokens[id]);
    }
    for (const std::string& token : byte_tokens) byte_ids_.push_back(ids_.find(token));
    fault_ = add(merges);
}

namespace {

// A merge whose tokens are being looked up.
struct MergeParts {
    explicit MergeParts(std::string_view merge) : left_size(std::min(merge.find(' '), merge.size())) {
        joined.assign(merge.substr(0, left_size));
        joined += merge.substr(std::min(left_size + 1, merge.size()));
    }
    std::array<std::string_view, 3> tokens() const {
        const std::string_view text = joined;
        return {text.substr(0, left_size), text.substr(left_size), text};
    }

    std::size_t left_size;
    std::string joined;
    std::array<std::size_t, 3> hashes;
};

}  // namespace

std::optional<std::size_t> PairMerges::add(const StoredStrings& merges) {
    ranks_.assign(slots_for(merges.size()), -1);
    merges_.reserve(merges.size());
    std::vector<MergeParts> group;
    for (std::size_t begin = 0; begin < merges.size(); begin = merges_.size()) {
        group.clear();
        for (std::size_t rank = begin; rank < std::min(begin + kMergesAtOnce, merges.size()); rank++) {
            MergeParts& parts = group.emplace_back(merges[rank]);
            const auto tokens = parts.tokens();
            for (std::size_t i = 0; i < 3; i++) parts.hashes[i] = ids_.begin_find(tokens[i]);
        }
        for (const MergeParts& parts : group) {
            const auto tokens = parts.tokens();
            std::array<std::int32_t, 3> ids;
            for (std::size_t i = 0; i < 3; i++) ids[i] = ids_.find(tokens[i], parts.hashes[i]);
            if (std::min({ids[0], ids[1], ids[2]}) < 0) return merges_.size();
            ranks_[slot(ids[0], ids[1])] = static_cast<std::int32_t>(merges_.size());
            merges_.push_back({ids[0], ids[1], ids[2]});
        }
    }
    return std::nullopt;
}

// The slot of a pair, or the free slot where it would go.
std::size_t PairMerges::slot(std::int32_t left, std::int32_t right) const {
    const std::size_t mask = ranks_.size() - 1;
    const std::uint64_t pair =
        std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
    std::size_t at = hash_(pair) & mask;
    while (ranks_[at] >= 0 && (merges_[ranks_[at]].left != left || merges_[ranks_[at]].right != right))
        at = (at + 1) & mask;
    return at;
}

std::int32_t PairMerges::rank_of(std::int32_t left, std::int32_t right) const {
    return ranks_[slot(left, right)];
}

std::vector<std::int32_t> PairMerges::encode(std::string_view text,
                                             std::span<const std::int64_t> ends) const {
    std::vector<std::int32_t> ids;
    using Place = std::pair<std::size_t, std::size_t>;  // in `ids`: start and count
    std::unordered_map<std::string_view, Place, KeyedHash> known(0, hash_);
    std::int64_t character = 0;
    for (const std::int64_t end : ends) {
        std::size_t size = 0;
        for (; character < end; character++) {
            if (size >= text.size()) throw std::invalid_argument("a word ends after the end of its text");
            size += first_character(text.substr(size));
        }
        const std::string_view word = text.substr(0, size);
        text.remove_prefix(size);
        if (const auto found = known.find(word); found != known.end()) {
            const auto [begin, count] = found->second;
            for (std::size_t i = begin; i < begin + count; i++) ids.push_back(ids[i]);
            continue;
        }
        const std::size_t begin = ids.size();
        encode_word(word, ids);
        if (word.size() <= kRememberedBytes && known.size() < kRememberedWords)
            known.emplace(word, Place(begin, ids.size() - begin));
    }
    return ids;
}

// One of the parts of a word; a part that was merged into the previous one has length 0.
struct PairMerges::Symbol {
    std::int32_t id, previous, next;
    bool is_gone;
};

void PairMerges::encode_word(std::string_view word, std::vector<std::int32_t>& ids) const {
    if (rules_.takes_whole_words) {
        const std::int32_t id = ids_.find(rules_.is_byte_level ? spelled(word) : word);
        if (id >= 0) return ids.push_back(id);
    }
    const std::vector<std::int32_t> first = characters(word);
    const auto count = static_cast<std::int32_t>(first.size());
    std::vector<Symbol> symbols(first.size());
    for (std::int32_t i = 0; i < count; i++)
        symbols[i] = {first[i], i - 1, i + 1 < count ? i + 1 : -1, false};

    struct Candidate {
        std::int32_t rank, left;
        bool operator<(const Candidate& other) const {  // the last of a queue comes first
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };
    std::priority_queue<Candidate> candidates;
    const auto propose = [&](std::int32_t left) {
        if (left < 0 || symbols[left].next < 0) return;
        const std::int32_t rank = rank_of(symbols[left].id, symbols[symbols[left].next].id);
        if (rank >= 0) candidates.push({rank, left});
    };
    for (std::int32_t i = 0; i < count; i++) propose(i);
    while (!candidates.empty()) {
        const Candidate best = candidates.top();
        candidates.pop();
        Symbol& left = symbols[best.left];
        if (left.is_gone || left.next < 0) continue;
        Symbol& right = symbols[left.next];
        // A part may have changed since then. Pairs that still give the same token are merged in this turn.
        const std::int32_t rank = rank_of(left.id, right.id), result = merges_[best.rank].result;
        if (rank < 0 || merges_[rank].result != result) continue;
        left.id = result;
        left.next = right.next;
        right.is_gone = true;
        if (right.next >= 0) symbols[right.next].previous = best.left;
        propose(left.previous);
        propose(best.left);
    }
    for (std::int32_t i = 0; i < count; i++)
        if (!symbols[i].is_gone) ids.push_back(symbols[i].id);
}

std::vector<std::int32_t> PairMerges::characters(std::string_view word) const {
    std::vector<std::int32_t> ids;
    const auto add_bytes = [&](std::string_view bytes) {
        for (const char byte : bytes)
            if (const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)]; id >= 0)
                ids.push_back(id);
    };
    if (rules_.is_byte_level) {
        add_bytes(word);
        return ids;
    }
    while (!word.empty()) {
        const std::string_view character = word.substr(0, first_character(word));
        word.remove_prefix(character.size());
        if (const std::int32_t id = ids_.find(character); id >= 0) {
            ids.push_back(id);
            continue;
        }
        const std::size_t before = ids.size();
        add_bytes(character);
        if (ids.size() - before < character.size()) ids.resize(before);
    }
    return ids;
}

std::string PairMerges::spelled(std::string_view word) const {
    std::string text;
    for (const char byte : word) text += byte_tokens_[static_cast<unsigned char>(byte)];
    return text;
}

}  // namespace chaski
