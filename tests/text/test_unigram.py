"""Unigram vocabularies with tables of characters: ids of transformers, and damaged tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chaski.errors import TokenizerError
from chaski.text.tokenizer import load_tokenizer
from chaski.text.tokenizer.unigram import Unigram
from tests.text.token_fixtures import KEY, fixture, ids_of, unigram_metadata

CORPUS = fixture("corpus")
TABLE: np.ndarray = unigram_metadata()[KEY + "precompiled_charsmap"]
UNITS = int.from_bytes(TABLE[:4].tobytes(), "little") // 4
TEXTS = [
    "ﬁrst ｆｕｌｌ ①②",
    "e\u0323\u0302 ﾊﾞ가 \x01\x02a",
    "\u3000 a \t b\r\n",
    "日本語 ﷺ ½",
    "\U0010ffff\x85\u2028",
]


def table(position: int, unit: int) -> np.ndarray:
    """Return the table with another unit in its trie."""
    found = TABLE.copy()
    found[4 + 4 * position : 8 + 4 * position] = np.frombuffer(np.uint32(unit).tobytes(), np.uint8)
    return found


def test_ids() -> None:
    tokenizer = load_tokenizer(unigram_metadata())
    # The published tokenizer reads special tokens even in plain text.
    special = [text for text in CORPUS if any(name in text for name in ("<s>", "</s>", "<unk>", "<pad>"))]
    differ = [
        text
        for text, ids in zip(CORPUS, ids_of("unigram", "ids"), strict=True)
        if tokenizer.encode(text, add_special=False, parse_special=False) != ids
    ]
    assert set(differ) <= set(special)
    assert len(differ) < 10


def test_ends_and_special_tokens() -> None:
    tokenizer = load_tokenizer(unigram_metadata())
    assert tokenizer.encode("") == [0, 2]
    assert tokenizer.encode(" \n ") == [0, 2]
    plain = tokenizer.encode("true", add_special=False)
    assert tokenizer.encode("true") == [0, *plain, 2]
    assert tokenizer.encode("true</s>true", add_special=False) == [*plain, 2, *plain]
    assert 2 not in tokenizer.encode("true</s>", add_special=False, parse_special=False)
    assert tokenizer.decode(plain) == "true"
    assert tokenizer.decode(tokenizer.encode("ｔｒｕｅ  ﬁ ")) == "true fi"


def test_without_a_space_in_front_and_with_all_spaces() -> None:
    settings = {"add_space_prefix": False, "precompiled_charsmap": None}
    tokenizer = load_tokenizer(unigram_metadata(**settings))
    assert tokenizer.decode(tokenizer.encode(" a  b ")) == "a b"
    tokenizer = load_tokenizer(unigram_metadata(**settings, remove_extra_whitespaces=False))
    assert tokenizer.decode(tokenizer.encode(" a  b ")) == " a  b "


def test_characters_without_a_piece_become_bytes() -> None:
    metadata = unigram_metadata()
    metadata[KEY + "tokens"] += [f"<0x{byte:02X}>" for byte in range(256)]
    metadata[KEY + "token_type"] += [6] * 256
    metadata[KEY + "scores"] += [0.0] * 256
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.decode(tokenizer.encode("a ꙮ𐍈 b")) == "a ꙮ𐍈 b"
    assert tokenizer.decode(tokenizer.encode("<0x41>")) == "<0x41>"
    metadata[KEY + "token_type"][-1] = 1
    with pytest.raises(TokenizerError, match="tokens for 255 bytes"):
        load_tokenizer(metadata)


def test_pieces_that_go_on_into_the_next_word() -> None:
    metadata = unigram_metadata()
    metadata[KEY + "tokens"][-2] = "▁true▁true"
    metadata[KEY + "scores"][-2] = -1.0
    ids = load_tokenizer(metadata).encode("true true", add_special=False)
    assert ids == [len(metadata[KEY + "tokens"]) - 2]


def test_tokens_that_no_text_becomes() -> None:
    metadata = unigram_metadata()
    size = len(metadata[KEY + "tokens"])
    metadata[KEY + "tokens"] += ["▁zzzz", "", "\0", "\x00x"]
    metadata[KEY + "token_type"] += [5, 1, 1, 1]
    metadata[KEY + "scores"] += [0.0] * 4
    tokenizer = load_tokenizer(metadata)
    assert not {size, size + 1} & set(tokenizer.encode("zzzz \0x"))
    assert tokenizer.encode(f" {size} 7") == tokenizer.encode(f"{size} 7")


@pytest.mark.parametrize("text", ["load", " load", "a  b", '": "'])
def test_the_tokens_of_a_text_in_the_middle_spell_it(text: str) -> None:
    tokenizer = load_tokenizer(unigram_metadata(precompiled_charsmap=None))
    ids = tokenizer.encode(text, add_special=False, continues=True)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scores": None}, "scores is missing"),
        ({"scores": [float("inf")] * len(fixture("unigram")["tokens"])}, "is not finite"),
        ({"precompiled_charsmap": "eHg="}, "is str, expected an array of bytes"),
        ({"precompiled_charsmap": 1.5}, "is float, expected an array of bytes"),
        ({"precompiled_charsmap": [0.5]}, "is not an array of bytes"),
        ({"precompiled_charsmap": (np.array([1, 2]), np.array([3]))}, "is not an array of bytes"),
        ({"precompiled_charsmap": [1, 2, 300]}, "contains a number that is not a byte"),
        ({"precompiled_charsmap": TABLE[:3]}, "has 3 bytes, but states a trie size of"),
        ({"precompiled_charsmap": TABLE[:1000]}, "has 1000 bytes, but states a trie size of 179200"),
        ({"precompiled_charsmap": np.full(12, 255, np.uint8)}, "but states a trie size of 4294967295"),
        ({"precompiled_charsmap": np.zeros(12, np.uint8)}, "but states a trie size of 0"),
        ({"precompiled_charsmap": np.zeros((1 << 24) + 1, np.uint8)}, "the limit is 16777216"),
        ({"precompiled_charsmap": TABLE[:-1]}, "its last replacement has no end"),
        ({"precompiled_charsmap": np.append(TABLE, [0xC3, 0])}, "of its replacements is not UTF-8"),
        ({"precompiled_charsmap": np.append(TABLE, [65] * 65 + [0])}, "has a replacement of 65 bytes"),
        ({"precompiled_charsmap": table(0, 0x7FFFFC00)}, "unit 0 of its trie has children outside the trie"),
        ({"precompiled_charsmap": table(0, 1 << 31 | 0x7FFFFC00)}, "unit 0 of its trie has children"),
        ({"precompiled_charsmap": table(UNITS - 1, 0x7FFFFE41)}, "has children outside the trie"),
    ],
)
def test_errors_at_load(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TokenizerError, match=says):
        load_tokenizer(unigram_metadata(**changes))


def test_replacements_outside_of_the_table() -> None:
    units = TABLE[4 : 4 + 4 * UNITS].view("<u4")
    replacements = TABLE[4 + 4 * UNITS :]
    (first,) = np.flatnonzero(units == 1 << 31)[:1]  # the place of the first replacement
    inside = int(np.flatnonzero((replacements & 0xC0) == 0x80)[0])
    for place in (len(replacements), 0x7FFFFFFF, inside):
        with pytest.raises(TokenizerError, match="of its trie does not refer to the start of a replacement"):
            load_tokenizer(unigram_metadata(precompiled_charsmap=table(first, 1 << 31 | place)))


def test_pieces_that_cannot_be_used() -> None:
    metadata = unigram_metadata()
    metadata[KEY + "tokens"][10] = "é" * 65
    with pytest.raises(TokenizerError, match=r"tokens\[10\] has 130 bytes; the limit for a piece is 128"):
        load_tokenizer(metadata).encode("x")
    metadata = unigram_metadata()
    metadata[KEY + "token_type"] = [3] * len(metadata[KEY + "tokens"])
    with pytest.raises(TokenizerError, match="no token is a piece of text"):
        load_tokenizer(metadata).encode("x")


def test_tables_of_random_bytes_are_refused_or_harmless() -> None:
    """For any table, a text gives ids or one of our errors."""
    rng = np.random.default_rng(5)
    refused = 0
    for _ in range(60):
        changed = TABLE.copy()
        where = rng.integers(4, len(TABLE), rng.integers(1, 4))
        changed[where] = rng.integers(0, 256, len(where))
        try:
            tokenizer = load_tokenizer(unigram_metadata(precompiled_charsmap=changed))
        except TokenizerError:
            refused += 1
            continue
        for text in TEXTS:
            tokenizer.decode(tokenizer.encode(text))
    assert 0 < refused < 60


def test_a_panic_of_the_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of the table, its reader notices by itself, as `tokenizers` does everywhere."""
    outside = table(0, 0x7FFFFC00).tobytes()
    monkeypatch.setattr("chaski.text.tokenizer.loader.read_charsmap", lambda metadata: outside)
    with pytest.raises(TokenizerError, match="cannot encode this text: index out of bounds"):
        load_tokenizer(unigram_metadata()).encode("a")

    class Stopped(BaseException):
        pass

    def stop(codec: Unigram) -> None:
        raise Stopped

    monkeypatch.setattr(Unigram, "_encoder", property(stop))
    with pytest.raises(Stopped):
        load_tokenizer(unigram_metadata()).encode("a")
