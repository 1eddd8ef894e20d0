"""Ids equal those of Hugging Face tokenizers and SentencePiece on the difficult corpus."""

from __future__ import annotations

import pytest

from chaski.text.tokenizer import load_tokenizer
from chaski.text.tokenizer.pretokenizers import PRETOKENIZERS
from tests.text.token_fixtures import (
    FAMILIES,
    SENTENCEPIECE,
    expected_ids,
    fixture,
    special_metadata,
    tokenizer,
)

CORPUS = fixture("corpus")


def test_corpus_is_large():
    assert len(CORPUS) == len(set(CORPUS)) >= 1000


@pytest.mark.parametrize("name", FAMILIES + SENTENCEPIECE)
def test_ids(name):
    tok = tokenizer(name)
    for text, ids in zip(CORPUS, expected_ids(name), strict=True):
        assert tok.encode(text, add_special=False, parse_special=False) == ids, ascii(text)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_differ(name):
    """The corpus distinguishes every two families; otherwise a wrong pattern could pass."""
    others = [other for other in FAMILIES if other != name]
    assert all(expected_ids(name) != expected_ids(other) for other in others)


@pytest.mark.parametrize("name", [name for name in FAMILIES if not PRETOKENIZERS[name].nfc])
def test_bytes_survive(name):
    tok = tokenizer(name)
    for text in CORPUS:
        ids = tok.encode(text, add_special=False, parse_special=False)
        assert b"".join(map(tok.token_bytes, ids)) == text.encode()
        assert tok.decode(ids) == text


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_text_survives(name):
    tok = tokenizer(name)
    for text in CORPUS:
        if "▁" not in text:  # SentencePiece cannot distinguish it from a space
            assert tok.decode(tok.encode(text, parse_special=False)) == text


@pytest.mark.parametrize(("kind", "parse_special"), [("parsed", True), ("plain", False)])
def test_special_tokens(kind, parse_special):
    tok = load_tokenizer(special_metadata())
    cases = fixture("special")
    for text, ids in zip(cases["texts"], cases[kind], strict=True):
        assert tok.encode(text, parse_special=parse_special) == ids, ascii(text)
        assert tok.decode(ids, special=True) == text
