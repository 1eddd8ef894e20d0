"""WordPiece rules; tests/convert compares its ids with transformers' for a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.errors import TokenizerError
from chaski.text.tokenizer import Tokenizer, load_tokenizer

KEY = "tokenizer.ggml."
TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "▁run",
    "ner",
    "▁a",
    "▁café",
    "▁cafe",
    "▁Run",
    "▁[",
    "▁]",
    "▁cls",
]
TOKENS += ["▁,", "▁你", "<tool>"]
TYPES = [3, 3, 3, 3, *[1] * 11, 4]


def tokenizer(**changed: Any) -> Tokenizer:
    entries: dict[str, Any] = {
        "model": "bert",
        "tokens": TOKENS,
        "token_type": TYPES,
        "cls_token_id": 2,
        "seperator_token_id": 3,
        "unknown_token_id": 1,
        **changed,
    }
    return load_tokenizer({KEY + name: value for name, value in entries.items() if value is not None})


def test_a_text_stands_between_two_tokens() -> None:
    assert tokenizer().encode("a runner, a run") == [2, 6, 4, 5, 13, 6, 4, 3]
    assert tokenizer().encode("") == [2, 3]
    assert tokenizer().encode("run", add_special=False) == [4]
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "add_eos_token": False}
    assert tokenizer(**ends).encode("run") == [0, 4]


def test_words_without_tokens_are_unknown() -> None:
    assert tokenizer().encode("xyz run", add_special=False) == [1, 4]
    assert tokenizer().encode("runs", add_special=False) == [1]
    assert tokenizer().encode("run" + "ner" * 40, add_special=False) == [1]
    assert tokenizer().encode("run你run", add_special=False) == [4, 14, 4]


def test_case_and_accents() -> None:
    cased = {"normalizer.lowercase": False}
    assert tokenizer().encode("Run CAFÉ", add_special=False) == [4, 8]
    assert tokenizer(**cased).encode("Run café", add_special=False) == [9, 7]
    kept = {"normalizer.strip_accents": False}
    assert tokenizer(**kept).encode("CAFÉ", add_special=False) == [7]
    assert tokenizer(**cased, **{"normalizer.strip_accents": True}).encode("café", add_special=False) == [8]


def test_special_tokens_in_a_text() -> None:
    assert tokenizer().encode("a[SEP]a<tool>run", add_special=False) == [6, 3, 6, 15, 4]
    assert tokenizer().encode("[CLS]", add_special=False, parse_special=False) == [10, 12, 11]


def test_text_of_tokens() -> None:
    assert tokenizer().decode([2, 6, 4, 5, 13, 8, 3]) == "a runner , cafe"
    assert tokenizer().decode([2, 6], special=True) == "[CLS]a"
    assert tokenizer().token_bytes(4) == b" run"
    assert tokenizer().token_bytes(15) == b"<tool>"


def test_a_vocabulary_without_a_token_for_unknown_words() -> None:
    with pytest.raises(TokenizerError, match="unknown_token_id is missing: WordPiece requires it"):
        tokenizer(unknown_token_id=None)
