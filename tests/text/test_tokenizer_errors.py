"""Bad metadata of tokenizers, and properties of all of them: threads, blanks, white space."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

from chaski.errors import TokenizerError, UnsupportedError
from chaski.text.tokenizer import load_tokenizer
from chaski.text.tokenizer.pretokenizers import PRETOKENIZERS
from tests.text.token_fixtures import (
    KEY,
    byte_level_metadata,
    fixture,
    sentencepiece_metadata,
    tokenizer,
    unigram_metadata,
)

FIRST_MERGE = fixture("byte_level")["merges"][0]
LONGEST = max(fixture("byte_level")["tokens"], key=len)


def changed(metadata, **changes):
    values = {**metadata, **{KEY + name: value for name, value in changes.items()}}
    return {key: value for key, value in values.items() if value is not None}


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"model": None}, "model is missing"),
            (
                {"model": "hybriddna"},
                "'hybriddna'; supported are bert, gemma4, gpt2, llama, plamo2, rwkv, t5. llama.cpp may",
            ),
            ({"model": "none"}, "model is none: this file has no tokenizer"),
            ({"model": 3}, "model is int, expected str"),
            (
                {"pre": "nonsense"},
                "which is not one of the .* llama.cpp may know it: pip install",
            ),
            ({"tokens": None}, "tokens is missing"),
            ({"tokens": []}, "tokens is empty"),
            ({"tokens": "abc"}, "tokens is str"),
            ({"tokens": np.zeros(3)}, r"tokens is list\[float\]"),
            ({"merges": None}, "merges is missing"),
            ({"token_type": [1, 2]}, "token_type has 2 entries for 1005 tokens"),
            ({"token_type": "x"}, "token_type is str, expected an array of numbers"),
            ({"bos_token_id": 1005}, "bos_token_id is 1005, but the vocabulary has 1005 tokens"),
            ({"eos_token_id": -1}, "eos_token_id is -1"),
            ({"eos_token_id": "1"}, "eos_token_id is str, expected int"),
            ({"eot_token_id": 5000}, "eot_token_id is 5000"),
            ({"eos_token_ids": [1, 9999]}, "eos_token_ids"),
            ({"add_bos_token": 1}, "add_bos_token is int, expected bool"),
            ({"add_bos_token": True}, "add_bos_token is true, but tokenizer.ggml.bos_token_id is missing"),
        ],
    )
    def test_at_load(self, changes, says):
        with pytest.raises(TokenizerError, match=says):
            load_tokenizer(changed(byte_level_metadata(), **changes))

    @pytest.mark.parametrize(
        ("merges", "says"),
        [
            ([FIRST_MERGE, "alone"], r"merges\[1\] is 'alone' and '', but 'alone' is not a token"),
            (["a b c"], "'a' and 'b c', but 'b c' is not a token"),
            (["Ġ Q"], "'Ġ' and 'Q', but 'ĠQ' is not a token"),
            ([LONGEST + " " + LONGEST], "is not a token"),
            ([FIRST_MERGE, "\udcff a"], r"merges\[1\] is not UTF-8"),
            ([FIRST_MERGE, 5], "merges contains a value that is not a string"),
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
            ({"add_space_prefix": "no"}, "add_space_prefix is str, expected bool"),
            ({"scores": [float("nan")] * 1200}, "scores contains a value that is not finite"),
            ({"token_type": [7] * 1200}, "token_type has the value 7; types are 1 to 6"),
        ],
    )
    def test_of_sentencepiece(self, changes, says):
        with pytest.raises(TokenizerError, match=says):
            load_tokenizer(changed(sentencepiece_metadata(), **changes))

    def test_of_character_tables(self):
        table = unigram_metadata()[KEY + "precompiled_charsmap"]
        with pytest.raises(UnsupportedError, match=r"precompiled_charsmap is not supported if .* 'llama'"):
            load_tokenizer(sentencepiece_metadata(precompiled_charsmap=table))

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
        with caplog.at_level(logging.INFO, logger="chaski"):
            load_tokenizer(changed(byte_level_metadata(), pre=None))
        assert "pre is missing" in caplog.text
        metadata = byte_level_metadata(merges=[FIRST_MERGE])
        metadata[KEY + "tokens"][0] = "[not a byte]"
        with caplog.at_level(logging.INFO, logger="chaski"):
            load_tokenizer(metadata).encode("x")
        assert "1 byte values have no token and are lost; the first is 0x21" in caplog.text


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
    """Hugging Face's tokens have `rstrip`; GGUF has no key for it."""
    metadata = sentencepiece_metadata()
    plain = load_tokenizer(metadata)
    phi = load_tokenizer({**metadata, "general.architecture": "phi3"})
    text = "one </s>\n two</s>  <s> three"
    assert phi.encode(text) == plain.encode("one </s>two</s><s> three") != plain.encode(text)
    assert phi.encode("one </s>\n two", parse_special=False) == plain.encode(
        "one </s>\n two", parse_special=False
    )
