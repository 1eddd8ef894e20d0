"""Rules around the algorithms: special tokens, BOS and EOS, end tokens."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from chaski.formats.string_array import StringArray
from chaski.text.tokenizer import load_tokenizer
from chaski.text.tokenizer.ends import END_TEXTS, find_marked
from tests.text.token_fixtures import (
    KEY,
    byte_level_metadata,
    sentencepiece_metadata,
    special_metadata,
    tokenizer,
)


def ids_of(tok, *tokens):
    spelled = {tok.token(i): i for i in range(tok.size)}
    return [spelled[token] for token in tokens]


class TestAdded:
    """BOS 0 and EOS 1 around [2, 3, 4], as in the reference engine."""

    @pytest.mark.parametrize(
        ("bos", "eos", "text", "expected"),
        [
            (True, False, "#$%", [0, 2, 3, 4]),
            (True, False, "!#$%", [0, 0, 2, 3, 4]),
            (False, True, '#$%"', [2, 3, 4, 1, 1]),
            (True, True, "#$%", [0, 2, 3, 4, 1]),
            (True, False, "", [0]),
            (False, False, "", []),
        ],
    )
    def test_tokens(self, bos, eos, text, expected):
        metadata = byte_level_metadata(bos_token_id=0, eos_token_id=1, add_bos_token=bos, add_eos_token=eos)
        metadata[KEY + "merges"] = ["a b"]
        metadata[KEY + "tokens"].append("ab")
        tok = load_tokenizer(metadata)
        assert [tok.token(i) for i in range(5)] == ["!", '"', "#", "$", "%"]
        assert tok.encode(text) == expected
        assert tok.encode(text, add_special=False) == expected[bos : len(expected) - eos]

    @pytest.mark.parametrize(
        ("pre", "adds"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), ("gpt-2", False)]
    )
    def test_default_of_byte_level(self, pre, adds):
        tok = load_tokenizer(byte_level_metadata(pre, bos_token_id=7, eos_token_id=8))
        assert tok.encode("x")[0] == 7 if adds else 7 not in tok.encode("x")
        assert 8 not in tok.encode("x")

    def test_default_of_sentencepiece(self):
        tok = tokenizer("sentencepiece_prefix")
        assert tok.encode("") == [tok.bos_id]

    def test_no_default_without_the_token(self):
        assert load_tokenizer(byte_level_metadata("llama-bpe")).encode("") == []


class TestSpecial:
    def test_longest_at_a_place_wins(self):
        tok = load_tokenizer(special_metadata())
        both, end, begin = ids_of(tok, "<|end|><|begin|>", "<|end|>", "<|begin|>")
        assert tok.encode("<|end|><|begin|>") == [both]
        assert tok.encode("<|end|><|end|>") == [end, end]
        assert tok.encode("<|begin|>") == [begin]

    def test_leftmost_wins_over_longest(self):
        metadata = byte_level_metadata(token_type=None)
        metadata[KEY + "tokens"] += ["<ab", "b><long>"]
        del metadata[KEY + "token_type"]
        size = len(metadata[KEY + "tokens"])
        metadata[KEY + "token_type"] = [1] * (size - 2) + [3, 3]
        assert load_tokenizer(metadata).encode("<ab><long>")[0] == size - 2

    def test_control_tokens_never_come_from_plain_text(self):
        metadata = byte_level_metadata("llama-bpe")
        metadata[KEY + "tokens"].append("secret")  # one word, which ignore_merges would keep whole
        metadata[KEY + "token_type"] = [1] * (len(metadata[KEY + "tokens"]) - 1) + [3]
        tok = load_tokenizer(metadata)
        assert tok.encode("secret") == [tok.size - 1]
        assert tok.size - 1 not in tok.encode("secret", parse_special=False)

    def test_user_defined_tokens_are_always_found(self):
        tok = load_tokenizer(special_metadata())
        assert ids_of(tok, "<tool>")[0] in tok.encode("a<tool>b", parse_special=False)

    def test_decode_hides_control_tokens_only(self):
        tok = load_tokenizer(special_metadata())
        ids = tok.encode("<|begin|>a<tool>b<|end|>")
        assert tok.decode(ids) == "a<tool>b"
        assert tok.decode(ids, special=True) == "<|begin|>a<tool>b<|end|>"
        assert tok.token_bytes(ids[0]) == b""
        assert tok.token_bytes(ids[0], special=True) == b"<|begin|>"

    def test_sentencepiece_puts_a_space_after_each_control_token(self):
        tok = tokenizer("sentencepiece_prefix")
        (a, control, x) = ids_of(tok, "▁a", "</s>", "▁I")
        assert tok.encode("a</s>I", add_special=False) == [a, control, x]
        assert tok.decode([a, control, x], special=True) == "a</s>I"

    def test_sentencepiece_user_defined_tokens(self):
        """As in llama.cpp, they are found by spelling, and a space is added before the following text."""
        tok = tokenizer("sentencepiece_prefix")
        ids = ids_of(tok, "▁a", "<tool>", "▁I")
        assert tok.encode("a<tool>I", add_special=False, parse_special=False) == ids
        assert tok.encode("<tool>", add_special=False) == [ids[1]]
        assert tok.decode(ids) == "a<tool>I"

    @pytest.mark.parametrize("space", [" ", "▁"])
    def test_sentencepiece_user_defined_spaces(self, space):
        """Converters spell such tokens with spaces or leave them unchanged."""
        metadata = sentencepiece_metadata("sentencepiece_plain")
        tokens = metadata[KEY + "tokens"]
        tokens[3:6] = [space * 2, space * 3, space * 4]
        tok = load_tokenizer(metadata)
        text = "a  b     c\n\nd"
        assert tok.encode(text) == tokenizer("sentencepiece_plain").encode(text)
        assert {3, 5} < set(tok.encode(text))
        assert tok.decode(tok.encode(text)) == text

    def test_sentencepiece_unknown_token_typed_as_control(self):
        """Many converted files have this type."""
        metadata = sentencepiece_metadata()
        metadata[KEY + "token_type"] = [3 if kind == 2 else kind for kind in metadata[KEY + "token_type"]]
        text = "Hello 漢 👍"
        assert load_tokenizer(metadata).encode(text) == tokenizer("sentencepiece_prefix").encode(text)

    def test_equal_tokens(self):
        """Of tokens with the same spelling the last is used, as in llama.cpp and the reference engine."""
        for metadata in (byte_level_metadata(), sentencepiece_metadata()):
            tokens = metadata[KEY + "tokens"]
            first = tokens.index("{")
            tokens[-1] = "{"
            ids = load_tokenizer(metadata).encode("a{a{{", add_special=False)
            assert len(tokens) - 1 in ids
            assert first not in ids

    def test_empty_tokens_are_harmless(self):
        for metadata in (byte_level_metadata(), sentencepiece_metadata()):
            metadata[KEY + "tokens"] += ["", ""]
            metadata[KEY + "token_type"] = [*metadata.get(KEY + "token_type", [1] * 1005), 3, 1]
            if KEY + "scores" in metadata:
                metadata[KEY + "scores"] += [0.0, 0.0]
            tok = load_tokenizer(metadata)
            assert tok.decode(tok.encode("Hello")) == "Hello"

    def test_lone_surrogates(self):
        for name in ("gpt-2", "sentencepiece_plain"):
            tok = tokenizer(name)
            assert tok.encode("a\ud800b") == tok.encode("a\ufffdb")


class TestEnd:
    def test_every_named_token(self):
        tok = load_tokenizer(
            byte_level_metadata(
                eos_token_id=3, eos_token_ids=np.array([4, 5]), eot_token_id=6, eom_token_id=7
            )
        )
        assert tok.eos_ids == {3, 4, 5, 6, 7}

    @pytest.mark.parametrize("kind", [1, 3, 4])
    def test_known_spellings_count_whatever_their_type(self, kind):
        metadata = byte_level_metadata(eos_token_id=3)
        size = len(metadata[KEY + "tokens"])
        metadata[KEY + "tokens"] += [*END_TEXTS - {"<|end|>", "</s>"}, "<|start|>"]
        metadata[KEY + "token_type"] = [1] * size + [kind] * (len(END_TEXTS) - 2) + [3]
        tok = load_tokenizer(metadata)
        assert tok.eos_ids == {3, *range(size, tok.size - 1)}
        for token_id in range(size, tok.size - 1):
            text = f"a{tok.token(token_id)}b"
            assert token_id in tok.encode(text, add_special=False)
            assert token_id not in tok.encode(text, parse_special=False)
            assert tok.token_bytes(token_id) == b""
        assert tok.decode(tok.encode("a<|im_end|>b")) == "ab"

    @pytest.mark.parametrize(("kind", "ends"), [(1, False), (3, True), (4, True)])
    def test_what_merges_make_of_text_is_text(self, kind, ends):
        """An example is `</s>` in the vocabulary of Qwen: a word of HTML."""
        metadata = byte_level_metadata("superbpe")  # it does not cut signs off
        size = len(metadata[KEY + "tokens"])
        metadata[KEY + "tokens"] += ["</", "</s", "</s>"]
        metadata[KEY + "merges"] = ["< /", "</ s", *(["</s >"] if kind == 1 else [])]
        metadata[KEY + "token_type"] = [1] * (size + 2) + [kind]
        tok = load_tokenizer(metadata)
        assert tok.eos_ids == ({size + 2} if ends else set())
        assert (size + 2 in tok.encode("a</s>", parse_special=False)) == (not ends)
        assert tok.decode(tok.encode("a</s>")) == ("a" if ends else "a</s>")

    def test_spellings_are_found_in_the_strings_of_a_file(self):
        tokens = ["", "a", "<|im_end|>", "</s>", "<s>", "<|im_end|", "<|im_end|>", ""]
        raws = [text.encode() for text in tokens]
        content = np.frombuffer(b"".join(struct.pack("<Q", len(raw)) + raw for raw in raws), np.uint8)
        array = StringArray(content, np.cumsum([0, *(8 + len(raw) for raw in raws)]))
        assert find_marked(array, {}, []).ends == {2, 3, 6}

    def test_what_follows_a_filled_in_text_ends_it(self):
        metadata = byte_level_metadata(fim_pre_token_id=7)
        size = len(metadata[KEY + "tokens"])
        metadata[KEY + "tokens"] += [
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
            "<|fim_suffix|>",
            "<PRE>",
        ]
        tok = load_tokenizer(metadata)
        assert tok.eos_ids == {size, size + 1, size + 2}
        controls = {token_id for token_id in range(size, tok.size) if tok.token_bytes(token_id) == b""}
        assert controls == {size, size + 1, size + 2, size + 3}  # the file names the token before a text

    @pytest.mark.parametrize(
        ("texts", "no_end"),
        [
            (["<|end|>", "<|return|>", "<|call|>"], "<|end|>"),
            (["<|end|>", "<|flush|>", "<|calls|>"], "<|end|>"),
            (["<|end|>", "<|call|>"], None),
            (["</s>", "<|tool_response>", "<turn|>"], "</s>"),
            (["</s>", "<turn|>"], None),
        ],
    )
    def test_what_is_no_end_beside_others(self, texts, no_end):
        metadata = byte_level_metadata()
        size = len(metadata[KEY + "tokens"])
        metadata[KEY + "tokens"] += texts
        metadata[KEY + "token_type"] = [1] * size + [4] * len(texts)
        tok = load_tokenizer(metadata)
        assert {tok.token(token_id) for token_id in tok.eos_ids} == set(texts) - {no_end}
        assert tok.token_bytes(size) == (b"" if no_end is None else no_end.encode())

    def test_none(self):
        tok = load_tokenizer(byte_level_metadata())
        assert tok.eos_ids == frozenset()
        assert tok.bos_id is None


@pytest.mark.parametrize("name", ["sentencepiece_prefix", "sentencepiece_plain", "gpt-2"])
@pytest.mark.parametrize("text", ["load", " load", "  two  loads ", "load\n", '": "'])
def test_the_tokens_of_a_text_in_the_middle_spell_it(name: str, text: str) -> None:
    tok = tokenizer(name)
    ids = tok.encode(text, add_special=False, continues=True)
    assert b"".join(map(tok.token_bytes, ids)).decode() == text
