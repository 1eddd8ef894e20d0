"""Build GGUF files byte by byte, right or wrong, without the writer under test."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded


def key(name: str | bytes, type: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", type) + value


def u32_key(name: str, value: int) -> bytes:
    return key(name, 4, struct.pack("<I", value))


def string_key(name: str, value: str | bytes) -> bytes:
    return key(name, 8, string(value))


def array(type: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", type, count) + values


def array_key(name: str, type: int, count: int, values: bytes) -> bytes:
    return key(name, 9, array(type, count, values))


def tensor(name: str | bytes, sizes: Sequence[int], type: int = 0, offset: int = 0) -> bytes:
    """Return a row of the tensor table; `sizes` are innermost first, as in the file."""
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, type, offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    key_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % alignment if data else 0) + data
