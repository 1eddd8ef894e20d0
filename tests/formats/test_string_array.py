"""Finding the strings of an array: the fast walk equals a plain walk for all strings."""

from __future__ import annotations

import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaski.formats.string_array import StringArray, find_strings
from tests.formats.gguf_bytes import string


def plain_offsets(content: bytes, start: int, count: int) -> list[int]:
    offsets = [start]
    for _ in range(count):
        length = int.from_bytes(content[offsets[-1] : offsets[-1] + 8], "little")
        end = offsets[-1] + 8 + length
        if offsets[-1] + 8 > len(content) or end > len(content):
            break
        offsets.append(end)
    return offsets


def check(content: bytes, start: int, count: int) -> None:
    found = find_strings(np.frombuffer(content, np.uint8), start, count)
    assert found.tolist() == plain_offsets(content, start, count)


ODD = {
    "empty": [b""] * 3000,
    "some empty": [b"a", b"", b"bc", b"", b"", b"d"] * 700,
    "zeros": [bytes(n) for n in range(40)] * 30,
    "a false prefix inside": [b"ab\x05" + bytes(7) + b"hello"] * 3000,
    "prefix-like endings": [b"x\x01" + bytes(7), b"y"] * 2000,
    "long": [b"x" * n for n in (1, 255, 256, 65535, 65536, 70000, 2, 200_000, 3)] * 2,
    "one": [b"x"],
    "ordinary": [b"token", b"\xc4\xa0the", b"a"] * 20_000,
    "one odd among many": [b"token"] * 20_000 + [b"", b""] + [b"token"] * 20_000,
}


@pytest.mark.parametrize("strings", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize(
    "after", [b"", bytes(100), b"\xff" * 100, string("next")], ids=["end", "0", "255", "next"]
)
def test_offsets(strings: list[bytes], after: bytes) -> None:
    packed = b"".join(map(string, strings))
    check(b"before" + packed + after, 6, len(strings))
    check(packed[:-1], 0, len(strings))
    check(packed[: len(packed) // 2], 0, len(strings))


@settings(deadline=None)
@given(
    st.lists(
        st.binary(max_size=20) | st.sampled_from([b"", bytes(9), b"\1" + bytes(8), b"a" * 300]), max_size=60
    ),
    st.binary(max_size=20),
    st.integers(0, 70),
)
def test_any_strings(strings: list[bytes], after: bytes, count: int) -> None:
    check(b"".join(map(string, strings)) + after, 0, count)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**62 - 8, 2**32])
def test_hostile_length(length: int) -> None:
    check(string("fine") + struct.pack("<Q", length) + b"x" * 100, 0, 2)


def test_hostile_strings_take_linear_time() -> None:
    """Each string breaks the chain of the fast walk, which must not cost a window per string."""
    content = string(b"\x01" + bytes(6) + b"\x01") * 200_000
    start = time.process_time()
    assert len(find_strings(np.frombuffer(content, np.uint8), 0, 200_000)) == 200_001
    assert time.process_time() - start < 1


def test_string_array() -> None:
    texts = [b"alpha", b"", "é".encode(), b"\xe2\x82", b"end"]
    content = b"".join(map(string, texts))
    strings = StringArray(np.frombuffer(content, np.uint8), np.array(plain_offsets(content, 0, 5)))
    decoded = ["alpha", "", "é", "\udce2\udc82", "end"]
    assert strings.tolist() == list(strings) == [strings[i] for i in range(5)] == decoded
    assert strings[1:4] == decoded[1:4]
    assert strings[-2].encode("utf-8", "surrogateescape") == strings.raw(3) == b"\xe2\x82"
    assert "é" in strings
    assert strings.index("end") == 4
    with pytest.raises(IndexError):
        strings[5]
