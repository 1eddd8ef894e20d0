"""Untrusted JSON is refused before it becomes large, and otherwise read as by Python."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from chaski.formats.bounded_json import TooManyValuesError, load_json

MANY = {
    "objects": b"[" + b"{}," * 1_000_000 + b"1]",
    "arrays": b"[" * 1_000_000,
    "texts without marks": b'""' * 1_000_000,
    "behind a text with marks": b'["' + b"," * 1_000_000 + b'",' + b"1," * 1000 + b"1]",
    "behind an escaped quote": b'["\\"' + b"," * 1_000_000 + b'",' + b"1," * 1000 + b"1]",
    "quotes without an end": b'"' + b'\\"' * 1_000_000 + b"," * 1_000_000,
}


@pytest.mark.parametrize("name", MANY)
def test_too_many_values(name):
    tracemalloc.start()
    with pytest.raises((TooManyValuesError, ValueError)) as caught:
        load_json(MANY[name], 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000
    if name not in ("quotes without an end", "texts without marks"):
        assert caught.type is TooManyValuesError


def test_marks_in_texts_are_no_values():
    text = json.dumps({"a": ",:[{" * 100_000, 'b"\\': [1, 2]})
    assert load_json(text.encode(), 10) == json.loads(text)


@pytest.mark.parametrize("size", [1, 300_000])
def test_it_is_read_as_python_reads_it(size):
    value = {"text": 'ä\n"\\😀' * size, "numbers": [1, -2, 1.5, 1e300, 10**308], "none": [None, {}]}
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), "\ufeff" + json.dumps(value)):
        assert load_json(text.encode(), 1000) == value


@pytest.mark.parametrize("padding", ["", " " * 300_000])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1e999]", "the number 1e999 is beyond the largest float"),
        ("[-1e999]", "the number -1e999 is beyond"),
        ("[1" + "0" * 400 + "]", "has 401 digits"),
        ("[NaN]", "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ("[1,]", "Expecting value|Illegal trailing comma"),
        ("{", "Expecting property name"),
    ],
)
def test_what_is_no_json(text, message, padding):
    with pytest.raises(ValueError, match=message):
        load_json((text + padding).encode(), 1000)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_other_encodings_are_refused(encoding):
    """In UTF-16, bytes of other characters look like quotes, and hide the number of values."""
    with pytest.raises(ValueError, match=r"codec|Expecting|column"):
        load_json('["ä"]'.encode(encoding), 1000)


@pytest.mark.parametrize("depth", [900, 100_000])
def test_depth(depth):
    for padding in (b"", b" " * 300_000):
        try:
            load_json(b"[" * depth + b"]" * depth + padding, 1_000_000)
        except RecursionError:
            assert depth > 900 or padding
