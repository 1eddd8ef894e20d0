"""Streaming detokenization: no text is lost, and no incomplete character is emitted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaski.text.tokenizer import load_tokenizer
from tests.text.token_fixtures import special_metadata, tokenizer

BYTE_LEVEL = tokenizer("gpt-2")
SENTENCEPIECE = tokenizer("sentencepiece_prefix")
BYTE_IDS = {BYTE_LEVEL.token_bytes(i): i for i in range(BYTE_LEVEL.size)}


def feed_bytes(stream, data):
    return [stream.feed(BYTE_IDS[bytes([byte])]) for byte in data]


@pytest.mark.parametrize(
    ("data", "pieces", "rest"),
    [
        (b"hi", ["h", "i"], ""),
        ("é".encode(), ["", "é"], ""),
        ("𒊀".encode(), ["", "", "", "𒊀"], ""),
        (b"\xc2", [""], "\ufffd"),
        (b"\xe0\xa0", ["", ""], "\ufffd"),
        (b"\xf0\x92\x8a", ["", "", ""], "\ufffd"),
        (b"\xff", ["\ufffd"], ""),
        (b"\x80a", ["\ufffd", "a"], ""),
        (b"\xf0\x92a", ["", "", "\ufffda"], ""),
        (b"\xc2\xc2\xa9", ["", "\ufffd", "©"], ""),
        (b"\xed\xa0\x80", ["", "", "\ufffd\ufffd\ufffd"], ""),
        (b"\xc0\x80", ["\ufffd", "\ufffd"], ""),
    ],
)
def test_bytes(data, pieces, rest):
    stream = BYTE_LEVEL.stream()
    assert feed_bytes(stream, data) == pieces
    assert stream.flush() == rest


@given(st.lists(st.integers(0, BYTE_LEVEL.size - 1), max_size=60))
def test_byte_level_stream_is_the_decoded_whole(ids):
    stream = BYTE_LEVEL.stream()
    text = "".join(map(stream.feed, ids)) + stream.flush()
    assert text == b"".join(map(BYTE_LEVEL.token_bytes, ids)).decode("utf-8", "replace")
    assert text == BYTE_LEVEL.decode(ids)


@given(st.lists(st.integers(4, SENTENCEPIECE.size - 1), max_size=60))  # 0 to 3 are special tokens
def test_sentencepiece_stream_is_the_decoded_whole(ids):
    stream = SENTENCEPIECE.stream()
    text = "".join(map(stream.feed, ids)) + stream.flush()
    assert text == b"".join(map(SENTENCEPIECE.token_bytes, ids)).decode("utf-8", "replace")


@given(st.text())
def test_any_text_survives(text):
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text
    if "▁" not in text:
        assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(text, parse_special=False)) == text


def test_continuation_keeps_its_space():
    ids = SENTENCEPIECE.encode("a word", add_special=False)
    stream = SENTENCEPIECE.stream()
    assert "".join(map(stream.feed, ids)) == " a word"
    stream = SENTENCEPIECE.stream(at_start=True)
    assert "".join(map(stream.feed, ids)) == "a word"


def test_control_tokens_add_nothing_and_break_nothing():
    tok = load_tokenizer(special_metadata())
    control = tok.encode("<|begin|>")[0]
    stream = tok.stream()
    assert [stream.feed(i) for i in (BYTE_IDS[b"\xc3"], control, BYTE_IDS[b"\xa9"])] == ["", "", "é"]


def test_flush_can_be_repeated():
    stream = BYTE_LEVEL.stream()
    feed_bytes(stream, b"\xe2\x82")
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert feed_bytes(stream, b"ok") == ["o", "k"]
