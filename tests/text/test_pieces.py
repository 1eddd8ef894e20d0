"""Tokenizers that search for pieces, `rwkv` and `plamo2`: ids of llama.cpp, bytes, and unusable files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaski.errors import TokenizerError
from chaski.text.tokenizer import load_tokenizer
from chaski.text.tokenizer.spellings import Spellings
from tests.text.token_fixtures import KEY, fixture, ids_of, pieces_metadata

KINDS = ["plamo2", "rwkv"]
CHARACTERS = sorted(set("".join(fixture("corpus"))) - {"\ufeff", "\0"})
TEXT = st.text(st.sampled_from(CHARACTERS), max_size=40)
# llama.cpp drops a byte order mark at the start of a text; the published tokenizer of PLaMo 2 does not.
TEXTS = [(index, text) for index, text in enumerate(fixture("corpus")) if not text.startswith("\ufeff")]


@pytest.mark.parametrize("kind", KINDS)
def test_ids(kind: str) -> None:
    tokenizer = load_tokenizer(pieces_metadata(kind))
    expected = ids_of("pieces", kind)
    for index, text in TEXTS:
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ids == expected[index], ascii(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_at_any_cut(kind: str) -> None:
    tokenizer = load_tokenizer(pieces_metadata(kind))
    text = "\ufeffa\\x41\\n\t\x00 日本🦙é[PAD9]<0x41>"
    ids = tokenizer.encode(text, add_special=False)
    stream = tokenizer.stream()
    assert "".join(map(stream.feed, ids)) + stream.flush() == text


def test_rwkv_spells_bytes_as_python_does() -> None:
    tokenizer = load_tokenizer(pieces_metadata("rwkv"))
    assert tokenizer.encode("\n\\'\"") == [1 + byte for byte in b"\n\\'\""]
    assert tokenizer.encode("<s>") == [0]
    assert tokenizer.encode("<s>", parse_special=False) != [0]
    assert [tokenizer.token_bytes(1 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]


def test_the_end_that_a_file_names_stays_text() -> None:
    """Converters name two line feeds as the end of RWKV's turn."""
    metadata = pieces_metadata("rwkv")
    metadata[KEY + "tokens"][-1], metadata[KEY + "token_type"][-1] = "\\n\\n", 1
    end = len(metadata[KEY + "tokens"]) - 1
    tokenizer = load_tokenizer({**metadata, KEY + "eot_token_id": end})
    assert tokenizer.eos_ids == {0, end}
    assert tokenizer.encode("a\n\nb") == [1 + ord("a"), end, 1 + ord("b")]


def test_plamo_adds_what_a_file_asks_for() -> None:
    plain, adding = (
        load_tokenizer(pieces_metadata("plamo2", **more)) for more in ({}, {"add_bos_token": True})
    )
    assert (plain.bos_id, plain.eos_ids) == (1, frozenset({2}))
    assert adding.encode("a") == [1, *plain.encode("a")]


def test_the_longest_comes_first() -> None:
    spellings = Spellings({"a": 0, "ab": 1, "abcd": 2, "b": 3, "abce": 4})
    assert list(spellings.at("abcd", 0)) == [(4, 2), (2, 1), (1, 0)]
    assert list(spellings.at("abc", 0)) == [(2, 1), (1, 0)]
    assert list(spellings.at("ab", 1)) == [(1, 3)]
    assert list(spellings.at("x", 0)) == []


def test_unusable_files() -> None:
    rwkv = load_tokenizer({**pieces_metadata("rwkv"), KEY + "token_type": None})
    assert rwkv.encode("a") == [1 + ord("a")]
    lacking = pieces_metadata("rwkv")
    lacking[KEY + "tokens"][1 + 0x41] = "other"
    with pytest.raises(TokenizerError, match="tokens has no token for the byte 0x41"):
        load_tokenizer(lacking).encode("a")
    plamo = pieces_metadata("plamo2")
    with pytest.raises(TokenizerError, match="scores is missing"):
        load_tokenizer({key: value for key, value in plamo.items() if key != KEY + "scores"})
    types = [1 if kind == 6 else kind for kind in plamo[KEY + "token_type"]]
    with pytest.raises(TokenizerError, match="no token is a byte"):
        load_tokenizer({**plamo, KEY + "token_type": types})


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp(kind: str) -> None:
    pytest.importorskip("xllamacpp")
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "fixtures"))
    import make_pieces  # type: ignore[import-not-found]

    ours = load_tokenizer(pieces_metadata(kind))
    with make_pieces.serving(kind) as theirs:

        @settings(max_examples=1000, deadline=None, database=None)
        @given(TEXT)
        def check(text: str) -> None:
            assert ours.encode(text, False, False) == theirs.encode(text)

        check()
