// Byte-pair encoding with any tokens, merges and texts: ids are of the vocabulary, and spell the text where
// every byte is a token.
#include "input.h"
#include "pair_merges.h"

namespace chaski {
namespace {

// Strings as a GGUF file stores them, with the places of their lengths.
struct Strings {
    std::vector<std::uint8_t> data;
    std::vector<std::int64_t> offsets{0};

    void add(std::string_view text) {
        const std::uint64_t length = text.size();
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(&length);
        data.insert(data.end(), bytes, bytes + sizeof length);
        data.insert(data.end(), text.begin(), text.end());
        offsets.push_back(static_cast<std::int64_t>(data.size()));
    }
    StoredStrings get() const { return {data, offsets}; }
};

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

// The ends of words, in characters, of a text in UTF-8.
std::vector<std::int64_t> ends_of(const std::string& text, std::int64_t length) {
    std::int64_t characters = 0;
    std::vector<std::int64_t> ends;
    for (const char byte : text) {
        if ((byte & 0xc0) == 0x80) continue;
        if (characters > 0 && characters % length == 0) ends.push_back(characters);
        ++characters;
    }
    if (characters > 0) ends.push_back(characters);
    return ends;
}

}  // namespace
}  // namespace chaski

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace chaski;
    Input input(data, size);
    const MergeRules rules{(input.byte() & 1) != 0, (input.byte() & 1) != 0};
    Strings tokens, merges, texts;
    std::vector<std::string> byte_tokens(256);
    const bool has_bytes = (input.byte() & 1) != 0;
    // As in vocabularies of bytes, a character stands for each byte; here, of the range from U+0100 on.
    for (int byte = 0; byte < 256; ++byte) {
        byte_tokens[byte] = {static_cast<char>(0xc4 + byte / 64), static_cast<char>(0x80 + byte % 64)};
        if (has_bytes) tokens.add(byte_tokens[byte]);
    }
    for (int count = input.byte() % 32; count > 0; --count) tokens.add(input.text(input.byte() % 8));
    for (int count = input.byte() % 32; count > 0; --count) merges.add(input.text(input.byte() % 12));
    std::vector<std::int64_t> unused;
    for (int count = input.byte() % 4; count > 0; --count)
        unused.push_back(input.below(tokens.offsets.size()) - 1);
    std::erase_if(unused, [](std::int64_t id) { return id < 0; });
    const std::int64_t length = 1 + input.byte() % 16;
    const std::string text = input.text(input.size());
    texts.add(text);
    if (first_that_is_not_utf8(tokens.get()) < tokens.get().size()) return 0;
    if (first_that_is_not_utf8(merges.get()) < merges.get().size()) return 0;
    if (first_that_is_not_utf8(texts.get()) == 0) return 0;
    const PairMerges made(tokens.get(), merges.get(), unused, byte_tokens, rules);
    if (made.fault()) return 0;
    const std::vector<std::int64_t> ends = ends_of(text, length);
    const std::vector<std::int32_t> ids = made.encode(text, ends);
    std::string spelled;
    for (std::int32_t id : ids) {
        if (id < 0 || static_cast<std::size_t>(id) >= tokens.get().size())
            fail("an id outside of the vocabulary");
        spelled += tokens.get()[id];
    }
    if (ids != made.encode(text, ends)) fail("two encodings of one text differ");
    std::string wanted;
    for (const char byte : text) wanted += byte_tokens[static_cast<std::uint8_t>(byte)];
    if (has_bytes && unused.empty() && rules.is_byte_level && spelled != wanted)
        fail("the ids spell another text");
    return 0;
}
