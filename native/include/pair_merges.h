// Byte-pair encoding of words with the tokens and the merges of a model file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace chaski {

// The strings of an array of a GGUF file. Each string follows its length (64 bits). `offsets` contains the
// place of each length, and last the end of the array.
class StoredStrings {
   public:
    StoredStrings(std::span<const std::uint8_t> data, std::span<const std::int64_t> offsets);
    std::size_t size() const { return offsets_.size() - 1; }
    std::string_view operator[](std::size_t index) const;

   private:
    std::span<const std::uint8_t> data_;
    std::span<const std::int64_t> offsets_;
};

// Index of the first string that is not UTF-8, or the number of strings.
std::size_t first_that_is_not_utf8(const StoredStrings& strings);

// A hash with a random key, so that no file or text can be crafted whose words all collide.
class KeyedHash {
   public:
    KeyedHash();
    std::size_t operator()(std::string_view text) const;
    std::size_t operator()(std::uint64_t value) const;

   private:
    std::uint64_t factor_, start_;
};

// Finds ids by the spelling of tokens; of equal spellings, the last one counts.
class TokenIds {
   public:
    explicit TokenIds(const StoredStrings& tokens);
    std::int32_t find(std::string_view token) const {
        return find(token, hash_(token));
    }  // -1 if there is none
    void forget(std::string_view token) { place(token, hash_(token)).id = -1; }

    // A search in two parts: the memory that the first part requests arrives while other searches begin.
    std::size_t begin_find(std::string_view token) const;
    std::int32_t find(std::string_view token, std::size_t hash) const;

   private:
    struct Place {
        std::uint32_t begin, size;  // of the spelling
        std::int32_t id;            // -1 if text never becomes it
    };
    const Place& place(std::string_view token, std::size_t hash) const;
    Place& place(std::string_view token, std::size_t hash);

    KeyedHash hash_;
    std::string spellings_;
    std::vector<Place> places_;
};

struct MergeRules {
    // A word that is a token becomes that token without merges.
    bool takes_whole_words;
    // If true, merging starts from the bytes of a word, each spelled as its token of `byte_tokens`. Otherwise
    // it starts from the characters; a character that is not a token becomes the tokens of its bytes, if all
    // of them have one.
    bool is_byte_level;
};

class PairMerges {
   public:
    // `unused` are ids of tokens that text never becomes.
    PairMerges(const StoredStrings& tokens, const StoredStrings& merges, std::span<const std::int64_t> unused,
               const std::vector<std::string>& byte_tokens, MergeRules rules);

    // The first merge that does not have two parts, or whose parts or result are not tokens. Then there is no
    // encoding.
    std::optional<std::size_t> fault() const { return fault_; }

    std::int32_t id_of(std::string_view token) const { return ids_.find(token); }

    // The ids of UTF-8 text that is cut into words; `ends` counts characters up to the end of each word.
    std::vector<std::int32_t> encode(std::string_view text, std::span<const std::int64_t> ends) const;

   private:
    struct Merge {
        std::int32_t left, right, result;
    };
    struct Symbol;

    std::size_t slot(std::int32_t left, std::int32_t right) const;
    std::int32_t rank_of(std::int32_t left, std::int32_t right) const;  // -1 if the pair has no merge
    std::optional<std::size_t> add(const StoredStrings& merges);
    void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const;
    std::vector<std::int32_t> characters(std::string_view word) const;
    std::string spelled(std::string_view word) const;

    KeyedHash hash_;
    TokenIds ids_;
    MergeRules rules_;
    std::vector<std::string> byte_tokens_;
    std::vector<std::int32_t> byte_ids_;
    std::vector<Merge> merges_;        // by rank
    std::vector<std::int32_t> ranks_;  // in the slots of the pairs, or -1
    std::optional<std::size_t> fault_;
};

}  // namespace chaski
