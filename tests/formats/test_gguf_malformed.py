"""Malformed files: each fault gives an error that names the problem and its place."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from chaski.errors import ChaskiError, GGUFError, UnsupportedError
from chaski.formats.gguf import open_gguf
from tests.formats.gguf_bytes import array, array_key, gguf, key, string, string_key, tensor, u32_key

TOKENS = array_key("tokens", 8, 2, string("a") + string("b"))
GOOD = gguf(
    [u32_key("general.alignment", 64), string_key("name", "x"), TOKENS], [tensor("t", [4])], bytes(16)
)


def nested(depth: int) -> bytes:
    value = array(9, 1, b"") * (depth - 1) + array(0, 0, b"")
    return gguf([key("k", 9, value)])


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


MALFORMED: dict[str, tuple[bytes, list[str]]] = {
    "empty file": (b"", ["not a GGUF file: it is empty"]),
    "short magic": (b"GGU", ["truncated", "the magic number"]),
    "bad magic": (gguf(magic=b"GGML"), ["not a GGUF file", "b'GGML'", "byte 0"]),
    "short version": (b"GGUF\3\0", ["truncated", "the version", "byte 4"]),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), ["big-endian"]),
    "big-endian, version 2": (b"GGUF" + struct.pack(">IQQ", 2, 0, 0), ["big-endian"]),
    "short counts": (gguf()[:20], ["truncated", "the number of keys", "byte 16"]),
    "more keys than bytes": (
        gguf([u32_key("k", 1)], key_count=5),
        ["truncated", "5 keys cannot fit", "byte 24"],
    ),
    "hostile key count": (
        gguf([u32_key("k", 1)], key_count=2**64 - 1),
        ["18446744073709551615 keys cannot fit"],
    ),
    "hostile tensor count": (gguf(tensor_count=2**63), ["9223372036854775808 tensors cannot fit"]),
    "more tensors than rows": (
        gguf([], [tensor("t", [1])], bytes(4), tensor_count=2),
        ["2 tensors cannot fit"],
    ),
    "short key": (gguf([string("key")[:-1] + bytes(20)], key_count=9), ["9 keys cannot fit"]),
    "long key length": (gguf([u64(2**40) + bytes(30)]), ["truncated", "the name of key 0", "byte 32"]),
    "empty key": (gguf([u32_key("", 1) + b"x"]), ["the name of key 0 must have 1 to 65535 bytes", "byte 24"]),
    "long key": (gguf([u32_key("k" * 65_536, 1)]), ["the name of key 0 must have 1 to 65535 bytes"]),
    "key not UTF-8": (gguf([key(b"k\xff", 0, b"\0")]), ["the name of key 0 is not UTF-8", "byte 33"]),
    "duplicate key": (gguf([u32_key("a", 1), u32_key("a", 1)]), ["key 'a' appears twice", "byte 41"]),
    "unknown value type": (gguf([key("k", 13, b"\0")]), ["key 'k' has the unknown value type 13", "byte 33"]),
    "no value type": (
        gguf([string("a-rather-long-key")]),
        ["truncated", "the type of key 'a-rather-long-key'"],
    ),
    "short scalar": (
        gguf([key("kk", 10, bytes(7))]),
        ["truncated", "the value of key 'kk' takes 8 bytes, 7 are"],
    ),
    "short string": (
        gguf([key("k", 8, u64(9) + b"x")]),
        ["truncated", "the value of key 'k' takes 9 bytes, 1"],
    ),
    "hostile string": (gguf([key("k", 8, u64(2**64 - 1))]), ["truncated", "the value of key 'k'"]),
    "string not UTF-8": (
        gguf([string_key("k", b"ab\xc3")]),
        ["the value of key 'k' is not UTF-8", "byte 47"],
    ),
    "scalar bool of 2": (gguf([key("k", 7, b"\2")]), ["the value of key 'k' has a bool", "byte 37"]),
    "array bool of 2": (gguf([array_key("k", 7, 3, b"\0\1\2")]), ["the value of key 'k' has a bool"]),
    "unknown element type": (gguf([array_key("k", 99, 0, b"")]), ["elements of the value of key 'k'", "99"]),
    "short array": (
        gguf([array_key("k", 5, 3, bytes(11))]),
        ["the value of key 'k' takes 12 bytes, 11 are left"],
    ),
    "hostile array": (gguf([array_key("k", 12, 2**61 + 1, bytes(8))]), ["the value of key 'k' takes"]),
    "hostile string array": (
        gguf([array_key("k", 8, 2**62, bytes(8))]),
        ["strings in the value of key 'k' cannot"],
    ),
    "more strings than bytes": (
        gguf([array_key("k", 8, 3, bytes(23))]),
        ["3 strings in the value of key 'k' cannot"],
    ),
    "string cut off in array": (
        gguf([array_key("k", 8, 2, string("a") + u64(100) + b"bcd")]),
        ["truncated", "string 1 of the value of key 'k' is cut off", "byte 58"],
    ),
    "hostile string in array": (
        gguf([array_key("k", 8, 2, string("a") + u64(2**64 - 8) + b"bcd")]),
        ["truncated", "string 1 of the value of key 'k' is cut off"],
    ),
    "hostile nested array": (
        gguf([array_key("k", 9, 2**60, bytes(12))]),
        ["arrays in the value of key 'k' cannot"],
    ),
    "short nested array": (
        gguf([array_key("k", 9, 1, array(0, 5, b"abc"))]),
        ["the value of key 'k' takes 5 bytes"],
    ),
    "alignment 0": (gguf([u32_key("general.alignment", 0)]), ["'general.alignment' is 0", "powers of two"]),
    "alignment 24": (
        gguf([u32_key("general.alignment", 24)]),
        ["'general.alignment' is 24", "powers of two"],
    ),
    "alignment 4": (gguf([u32_key("general.alignment", 4)]), ["'general.alignment' is 4", "from 8 to"]),
    # Found by fuzzing: a copy of such a file would be padding of gigabytes.
    "alignment 2^31": (gguf([u32_key("general.alignment", 2**31)]), ["is 2147483648", "from 8 to 65536"]),
    "alignment text": (gguf([string_key("general.alignment", "x")]), ["'general.alignment' is str, not int"]),
    "negative alignment": (gguf([key("general.alignment", 5, b"\xff" * 4)]), ["'general.alignment' is -1"]),
    "tensor without name": (
        gguf([], [tensor("", [1])], bytes(8)),
        ["the name of tensor 0 must have 1 to 65535 bytes", "byte 24"],
    ),
    "tensor name not UTF-8": (
        gguf([], [tensor(b"\x80", [1])], bytes(8)),
        ["the name of tensor 0 is not UTF-8"],
    ),
    "short tensor row": (
        gguf([], [tensor("a" * 9, [1])[:-1]]),
        ["truncated", "the offset of tensor 'aaaaaaaaa'"],
    ),
    "duplicate tensor": (
        gguf([], [tensor("t", [1])] * 2, bytes(64)),
        ["tensor 't' appears twice", "byte 57"],
    ),
    "no dimensions": (gguf([], [tensor("t", []) + bytes(8)]), ["tensor 't' has 0 dimensions; 1 to 4"]),
    "five dimensions": (
        gguf([], [tensor("t", [1] * 5)], bytes(8)),
        ["tensor 't' has 5 dimensions", "byte 24"],
    ),
    "hostile dimensions": (
        gguf([], [string("t") + struct.pack("<I", 2**32 - 1) + bytes(40)]),
        ["tensor 't' has 4294967295 dimensions"],
    ),
    "dimension of size 0": (gguf([], [tensor("t", [4, 0])], bytes(8)), ["tensor 't'", "size 0: (0, 4)"]),
    "unknown type": (gguf([], [tensor("t", [1], 99)], bytes(8)), ["tensor 't' has the unknown type 99"]),
    "half a block": (
        gguf([], [tensor("t", [48, 2], 2)], bytes(64)),
        ["tensor 't' has rows of 48 elements, not whole Q4_0 blocks of 32"],
    ),
    "half a super-block": (
        gguf([], [tensor("t", [128], 12)], bytes(144)),
        ["128 elements, not whole Q4_K", "256"],
    ),
    "data too short": (
        gguf([], [tensor("t", [4])], bytes(15)),
        ["truncated", "tensor 't' is 16 bytes from byte 64"],
    ),
    "no data": (
        gguf([], [tensor("t", [4])]),
        ["truncated", "tensor 't' is 16 bytes from byte 64", "ends at 57"],
    ),
    "hostile offset": (
        gguf([], [tensor("t", [1], 0, 2**64 - 32)], bytes(8)),
        ["truncated", "tensor 't' is 4 bytes"],
    ),
    "misaligned offset": (
        gguf([], [tensor("t", [1], 0, 16)], bytes(64)),
        ["tensor 't' has the offset 16, not a multiple of 32", "byte 24"],
    ),
    "size overflows 64 bits": (
        gguf([], [tensor("t", [2**32, 2**31, 2])], bytes(64)),
        ["truncated", "tensor 't' is 73786976294838206464 bytes"],
    ),
    "huge dimension": (gguf([], [tensor("t", [2**64 - 1])], bytes(64)), ["truncated", "tensor 't'"]),
    "overlap": (
        gguf([], [tensor("a", [16], 0, 32), tensor("b", [16])], bytes(96)),
        ["tensors 'b' and 'a' overlap"],
    ),
    "same offset": (
        gguf([], [tensor("a", [1]), tensor("b", [1])], bytes(64)),
        ["tensors 'a' and 'b' overlap"],
    ),
    "split without a number": (
        gguf([u32_key("split.count", 2)]),
        ["one of 2 parts; they must be in one folder"],
    ),
    "hostile split": (gguf([key("split.count", 10, u64(2**64 - 1))]), ["one of 18446744073709551615 parts"]),
}

UNSUPPORTED: dict[str, tuple[bytes, list[str]]] = {
    "version 1": (gguf(version=1), ["version 1 is not supported; 2 and 3 are", "byte 4"]),
    "version 4": (gguf(version=4), ["version 4 is not supported"]),
    "type to come": (
        gguf([], [tensor("t", [256], 15)], bytes(999)),
        ["tensor 't': type Q8_K is not supported yet"],
    ),
    "removed type": (gguf([], [tensor("t", [32], 31)], bytes(99)), ["tensor 't': type Q4_0_4_4 was removed"]),
    "array bomb": (nested(1000), ["the value of key 'k' has too many arrays inside arrays"]),
    "nine levels": (nested(9), ["the value of key 'k' has too many arrays inside arrays"]),
    "too many keys": (gguf([bytes(14 * 65_537)], key_count=65_537), ["65537 keys; at most 65536 are read"]),
    "too many tensors": (
        gguf([], [bytes(33 * 65_537)], tensor_count=65_537),
        ["65537 tensors; at most 65536"],
    ),
}


def error_of(tmp_path: Path, content: bytes, kind: type[ChaskiError]) -> str:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(kind) as caught:
        open_gguf(path)
    assert caught.type is kind
    return str(caught.value)


@pytest.mark.parametrize(("content", "parts"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    message = error_of(tmp_path, content, GGUFError)
    for part in ["bad.gguf: ", *parts]:
        assert part in message


@pytest.mark.parametrize(("content", "parts"), UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_unsupported(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    message = error_of(tmp_path, content, UnsupportedError)
    for part in ["bad.gguf: ", *parts]:
        assert part in message


@pytest.mark.parametrize(
    ("entry", "nbytes", "part"),
    [
        (
            string("k") + struct.pack("<IQ", 8, 2**25 + 1),
            2**25 + 1,
            "has 33554433 bytes; at most 33554432 of text",
        ),
        (
            string("k") + struct.pack("<IIQ", 9, 8, 2**22 + 1),
            2**25 + 8,
            "4194305 strings in the value of key 'k'",
        ),
    ],
    ids=["text", "string array"],
)
def test_more_than_is_read(tmp_path: Path, entry: bytes, nbytes: int, part: str) -> None:
    path = tmp_path / "large.gguf"
    header = gguf([entry])
    path.write_bytes(header)
    with path.open("r+b") as file:
        file.truncate(len(header) + nbytes)
    with pytest.raises(UnsupportedError, match=part):
        open_gguf(path)


def test_eight_levels_are_read(tmp_path: Path) -> None:
    path = tmp_path / "nested.gguf"
    path.write_bytes(nested(8))
    value: Any = open_gguf(path).metadata["k"]
    for _ in range(7):
        (value,) = value
    assert len(value) == 0


@pytest.mark.parametrize("length", range(1, len(GOOD)))
def test_every_truncation(tmp_path: Path, length: int) -> None:
    """A file that is truncated anywhere is malformed, and the error reports the truncation."""
    assert "truncated" in error_of(tmp_path, GOOD[:length], GGUFError)
