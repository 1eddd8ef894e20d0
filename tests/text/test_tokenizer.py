"""Rules around the algorithms: special tokens, BOS and EOS, end tokens, and what bad metadata says."""

from __future__ import annotations

import logging
import struct
import threading

import numpy as np
import pytest

from chaski.errors import TokenizerError, UnsupportedError
from chaski.formats.string_array import StringArray
from chaski.text.tokenizer import load_tokenizer
from chaski.text.tokenizer.ends import END_TEXTS, find_marked
from chaski.text.tokenizer.pretokenizers import PRETOKENIZERS
from tests.text.token_fixtures import (
    byte_level_metadata,
    fixture,
    sentencepiece_metadata,
    special_metadata,
    tokenizer,
)

KEY = "tokenizer.ggml."
FIRST_MERGE = fixture("byte_level")["merges"][0]
LONGEST = max(fixture("byte_level")["tokens"], key=len)


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
        metadata[KEY + "tokens"].append("secret")  # one word, which ignore_merges would take whole
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
        """As in llama.cpp: found by their spelling, with a space put before the text that follows."""
        tok = tokenizer("sentencepiece_prefix")
        ids = ids_of(tok, "▁a", "<tool>", "▁I")
        assert tok.encode("a<tool>I", add_special=False, parse_special=False) == ids
        assert tok.encode("<tool>", add_special=False) == [ids[1]]
        assert tok.decode(ids) == "a<tool>I"

    @pytest.mark.parametrize("space", [" ", "▁"])
    def test_sentencepiece_user_defined_spaces(self, space):
        """Converters spell such tokens with spaces or leave them as they were."""
        metadata = sentencepiece_metadata("sentencepiece_plain")
        tokens = metadata[KEY + "tokens"]
        tokens[3:6] = [space * 2, space * 3, space * 4]
        tok = load_tokenizer(metadata)
        text = "a  b     c\n\nd"
        assert tok.encode(text) == tokenizer("sentencepiece_plain").encode(text)
        assert {3, 5} < set(tok.encode(text))
        assert tok.decode(tok.encode(text)) == text

    def test_sentencepiece_unknown_token_typed_as_control(self):
        """Many converted files have it so."""
        metadata = sentencepiece_metadata()
        metadata[KEY + "token_type"] = [3 if kind == 2 else kind for kind in metadata[KEY + "token_type"]]
        text = "Hello 漢 👍"
        assert load_tokenizer(metadata).encode(text) == tokenizer("sentencepiece_prefix").encode(text)

    def test_equal_tokens(self):
        """Of tokens with one spelling the last is used, as in llama.cpp and the reference engine."""
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
        """`</s>` in the vocabulary of Qwen: a word of HTML."""
        metadata = byte_level_metadata("superbpe")  # it cuts no signs off
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


def changed(metadata, **changes):
    values = {**metadata, **{KEY + name: value for name, value in changes.items()}}
    return {key: value for key, value in values.items() if value is not None}


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"model": None}, "model is missing"),
            ({"model": "t5"}, "'t5'; supported are bert, gemma4, gpt2, llama. llama.cpp may know it"),
            ({"model": "none"}, "model is none: this file has no tokenizer"),
            ({"model": 3}, "model is a int, expected str"),
            ({"pre": "nonsense"}, "'nonsense', which is none of the .* llama.cpp may know it: pip install"),
            ({"tokens": None}, "tokens is missing"),
            ({"tokens": []}, "tokens is empty"),
            ({"tokens": "abc"}, "tokens is a str"),
            ({"tokens": np.zeros(3)}, "tokens is a ndarray"),
            ({"merges": None}, "merges is missing"),
            ({"token_type": [1, 2]}, "token_type has 2 entries for 1005 tokens"),
            ({"token_type": "x"}, "token_type is not an array of numbers"),
            ({"bos_token_id": 1005}, "bos_token_id is 1005, but the vocabulary has 1005 tokens"),
            ({"eos_token_id": -1}, "eos_token_id is -1"),
            ({"eos_token_id": "1"}, "eos_token_id is a str, expected int"),
            ({"eot_token_id": 5000}, "eot_token_id is 5000"),
            ({"eos_token_ids": [1, 9999]}, "eos_token_ids"),
            ({"add_bos_token": 1}, "add_bos_token is a int, expected bool"),
            ({"add_bos_token": True}, "add_bos_token is true, but tokenizer.ggml.bos_token_id is missing"),
        ],
    )
    def test_at_load(self, changes, says):
        with pytest.raises(TokenizerError, match=says):
            load_tokenizer(changed(byte_level_metadata(), **changes))

    @pytest.mark.parametrize(
        ("merges", "says"),
        [
            ([FIRST_MERGE, "alone"], r"merges\[1\] is 'alone' and '', but 'alone' is no token"),
            (["a b c"], "'a' and 'b c', but 'b c' is no token"),
            (["Ġ Q"], "'Ġ' and 'Q', but 'ĠQ' is no token"),
            ([LONGEST + " " + LONGEST], "is no token"),
            ([FIRST_MERGE, "\udcff a"], r"merges\[1\] is not UTF-8"),
            ([FIRST_MERGE, 5], "merges holds something that is not a string"),
        ],
    )
    def test_of_merges(self, merges, says):
        tok = load_tokenizer(byte_level_metadata(merges=merges))
        with pytest.raises(TokenizerError, match=says):
            tok.encode("x")

    @pytest.mark.parametrize("metadata", [byte_level_metadata(), sentencepiece_metadata()])
    def test_of_tokens_that_are_not_utf8(self, metadata):
        metadata = changed(metadata, tokens=[*metadata[KEY + "tokens"][:-1], "a\udc80"])
        tok = load_tokenizer(metadata)
        with pytest.raises(TokenizerError, match=r"tokens\[\d+\] is not UTF-8"):
            tok.encode("x")
        assert tok.token_bytes(tok.size - 1) == b"a\x80"

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"scores": None}, "scores is missing"),
            ({"scores": [0.0]}, "scores has 1 entries for"),
            ({"add_space_prefix": "no"}, "add_space_prefix is a str, expected bool"),
            ({"scores": [float("nan")] * 1200}, "scores holds a value that is not finite"),
            ({"token_type": [7] * 1200}, "token_type has the value 7; types are 1 to 6"),
        ],
    )
    def test_of_sentencepiece(self, changes, says):
        with pytest.raises(TokenizerError, match=says):
            load_tokenizer(changed(sentencepiece_metadata(), **changes))

    def test_of_character_tables(self):
        with pytest.raises(UnsupportedError, match="precompiled_charsmap"):
            load_tokenizer(sentencepiece_metadata(precompiled_charsmap=np.zeros(8, np.uint8)))
        for value in (1, 1.5, True, "eHg="):
            with pytest.raises(TokenizerError, match=r"precompiled_charsmap is a .*, expected an array"):
                load_tokenizer(sentencepiece_metadata(precompiled_charsmap=value))

    def test_of_byte_tokens(self):
        metadata = sentencepiece_metadata()
        types = list(metadata[KEY + "token_type"])
        types[types.index(6)] = 1
        with pytest.raises(TokenizerError, match="tokens for 255 bytes, expected all 256 or none"):
            load_tokenizer(changed(metadata, token_type=types)).encode("x")
        types = [6 if kind == 4 else kind for kind in metadata[KEY + "token_type"]]
        with pytest.raises(TokenizerError, match="'<tool>' is typed as a byte"):
            load_tokenizer(changed(metadata, token_type=types)).encode("x")

    @pytest.mark.parametrize("bad", [-1, 1005, 10**9])
    def test_of_ids(self, bad):
        tok = tokenizer("gpt-2")
        for use in (tok.token, tok.token_bytes, tok.stream().feed, lambda i: tok.decode([i])):
            with pytest.raises(
                TokenizerError, match=f"token id {bad} is outside the vocabulary of 1005 tokens"
            ):
                use(bad)

    def test_warnings(self, caplog):
        with caplog.at_level(logging.WARNING):
            load_tokenizer(changed(byte_level_metadata(), pre=None))
        assert "pre is missing" in caplog.text
        metadata = byte_level_metadata(merges=[FIRST_MERGE])
        metadata[KEY + "tokens"][0] = "[not a byte]"
        with caplog.at_level(logging.WARNING):
            load_tokenizer(metadata).encode("x")
        assert "1 byte values have no token and are lost, 0x21 first" in caplog.text


def test_blanks_pattern_of_deepseek_llm():
    """Ours takes linear time; the published one gives the same pieces."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    (ours,) = (p for p in PRETOKENIZERS["deepseek-llm"].patterns if p.endswith("$"))
    published = Split(Regex(r"\s+$"), "isolated")
    for text in fixture("corpus"):
        line = text.replace("\n", "").replace("\r", "")  # an earlier pattern of the family isolates these
        assert Split(Regex(ours), "isolated").pre_tokenize_str(line) == published.pre_tokenize_str(line)


@pytest.mark.parametrize("name", ["llama-bpe", "sentencepiece_prefix"])
def test_threads(name):
    tok = load_tokenizer(byte_level_metadata(name) if name == "llama-bpe" else sentencepiece_metadata(name))
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(tok.encode("Hello, world " * 50))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(result == results[0] for result in results)


def test_special_tokens_of_phi_take_the_white_space_behind_them():
    """As Hugging Face's `rstrip` of its tokens says; no key of GGUF does."""
    metadata = sentencepiece_metadata()
    plain = load_tokenizer(metadata)
    phi = load_tokenizer({**metadata, "general.architecture": "phi3"})
    text = "one </s>\n two</s>  <s> three"
    assert phi.encode(text) == plain.encode("one </s>two</s><s> three") != plain.encode(text)
    assert phi.encode("one </s>\n two", parse_special=False) == plain.encode(
        "one </s>\n two", parse_special=False
    )
