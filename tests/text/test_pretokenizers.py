"""Every name in `tokenizer.ggml.pre` cuts text like llama.cpp or the published tokenizer.

The published one counts if llama.cpp only approximates it; see
tools/fixtures/make_pretokenizer_fixtures.py."""

from __future__ import annotations

import logging
import os
import unicodedata
from pathlib import Path

import pytest

import chaski
from chaski.errors import TokenizerError
from chaski.formats.gguf import open_gguf
from chaski.text.tokenizer import load_tokenizer
from chaski.text.tokenizer.pretokenizers import PRETOKENIZERS
from tests.text.token_fixtures import byte_level_metadata, fixture, ids_of, text_metadata, tokenizer
from tests.tiny_llama import write_tiny_llama

CASES = fixture("pretokenizers")
STRINGS: list[str] = CASES["strings"]


def test_every_name_has_expected_ids():
    assert set(CASES["names"]) == set(PRETOKENIZERS)
    assert len(PRETOKENIZERS) >= 91


@pytest.mark.parametrize("name", sorted(CASES["names"]))
def test_ids(name):
    tok = tokenizer(name)
    for text, ids in zip(STRINGS, ids_of("pretokenizers", CASES["names"][name]), strict=True):
        assert tok.encode(text, add_special=False, parse_special=False) == ids, ascii(text)
        if not PRETOKENIZERS[name].nfc and (PRETOKENIZERS[name].byte_level or "\u2581" not in text):
            assert tok.decode(ids) == text


@pytest.mark.parametrize("pre", [None, "", "default"])
def test_no_name_means_the_default(pre, caplog):
    """llama.cpp has the same rule and warning for such files."""
    metadata = byte_level_metadata() | {"tokenizer.ggml.pre": pre}
    tok = load_tokenizer({key: value for key, value in metadata.items() if value is not None})
    for text, ids in zip(STRINGS, ids_of("pretokenizers", CASES["names"]["default"]), strict=True):
        assert tok.encode(text, add_special=False, parse_special=False) == ids, ascii(text)
    assert ("pre is missing" in caplog.text) == (pre != "default")


class TestTextTokens:
    """Gemma 4 and others: tokens are text in SentencePiece's spelling."""

    def test_gemma4_is_a_kind_of_its_own(self):
        metadata = text_metadata("gemma4")
        alone = metadata | {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.pre": "anything"}
        for text in STRINGS:
            assert load_tokenizer(alone).encode(text) == load_tokenizer(metadata).encode(text)

    def test_bytes_spaces_and_streams(self):
        tok = load_tokenizer(text_metadata("gemma4"))
        ids = tok.encode("a  b\n\n\n\u1681\U0001f9ff")
        assert b"".join(map(tok.token_bytes, ids)).decode() == "a  b\n\n\n\u1681\U0001f9ff"
        assert tok.token_bytes(0xF0) == b"\xf0"

    def test_lost_bytes_are_told(self, caplog):
        caplog.set_level(logging.INFO, logger="chaski")
        metadata = text_metadata("gemma4")
        metadata["tokenizer.ggml.tokens"][0x0A] = "[no line feed]"
        load_tokenizer(metadata).encode("x")
        assert "1 byte values have no token and are lost; the first is 0x0a" in caplog.text


class TestAtLoad:
    """An unusable tokenizer is refused before the weights are read; the error names the file."""

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"pre": "from-the-future"}, r"odd\.gguf: tokenizer\.ggml\.pre is 'from-the-future'.*llama\.cpp"),
            ({"model": "hybriddna"}, r"odd\.gguf: tokenizer\.ggml\.model is 'hybriddna'; supported are"),
            ({"model": "whitespace"}, r"odd\.gguf: tokenizer\.ggml\.model is 'whitespace'"),
            ({"merges": None}, r"odd\.gguf: tokenizer\.ggml\.merges is missing"),
        ],
    )
    def test_refused(self, tmp_path, changes, says):
        changed = {f"tokenizer__ggml__{key}": value for key, value in changes.items()}
        path = write_tiny_llama(tmp_path / "odd.gguf", **changed)
        with pytest.raises(TokenizerError, match=says):
            chaski.load(path, engine="native")

    @pytest.mark.parametrize("model", [None, "none", "no_vocab"])
    def test_a_file_without_one_is_given_ids(self, tmp_path, model):
        path = write_tiny_llama(tmp_path / "bare.gguf", tokenizer__ggml__model=model)
        with chaski.load(path, context=16) as llm:
            assert llm.logits([1, 2, 3]).shape[0] == 3
            with pytest.raises(TokenizerError, match="this file has no tokenizer"):
                llm.generate("text")


VOCABULARIES = os.environ.get("CHASKI_TEST_VOCABULARIES", "")
# llama.cpp wrote the expected ids of this file; transformers composes text for this family.
COMPOSED = {"ggml-vocab-qwen35.gguf"}


@pytest.mark.oracle
@pytest.mark.skipif(
    not VOCABULARIES, reason="CHASKI_TEST_VOCABULARIES is no folder of llama.cpp's vocabularies"
)
def test_real_vocabularies():
    """It uses llama.cpp's files `models/ggml-vocab-*.gguf` with `.inp` and `.out`: ids of transformers."""
    tested = 0
    for texts_path in sorted(Path(VOCABULARIES).glob("*.gguf.inp")):
        texts = texts_path.read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
        lines = texts_path.with_suffix(".out").read_text().split("\n")[: len(texts)]
        tok = load_tokenizer(open_gguf(texts_path.with_suffix("")).metadata)
        for text, line in zip(texts, lines, strict=True):
            ids = tok.encode(text, add_special=False, parse_special=False)
            composed = texts_path.stem in COMPOSED and any("\u0300" <= char <= "\u036f" for char in text)
            assert composed or ids == [int(number) for number in line.split()], (texts_path.name, text)
        tested += 1
    assert tested


@pytest.mark.parametrize("letters", ["e\u0301\u0323", "\u0344\u0323\u0301a", "e\u0301", "\u1100\u1161\u11a8"])
def test_long_runs_of_marks_are_composed_as_unicode_says(letters):
    """They are sorted before, since the standard library's own sorting takes quadratic time."""
    tok = tokenizer("qwen2")
    text = letters + letters[1:] * 40
    composed = unicodedata.normalize("NFC", text)
    assert tok.encode(text) == tok.encode(composed)
    assert tok.decode(tok.encode(text)) == composed
