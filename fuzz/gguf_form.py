"""A model of the GGUF format: headers are taken apart, changed by their meaning, and written again.

Inputs of the corpus are headers without the tensors' bytes, so that they are small; `whole_file` adds bytes.
Counts, lengths and offsets are written to agree with the content, so most changed files pass the reader and
reach the code after it.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import numpy as np

from chaski.formats.quant import FILE_TYPES, QuantType
from fuzz.mutations import NUMBERS, mutate_bytes

__all__ = ["Header", "header_of", "mutate_gguf", "parse", "whole_file"]

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_FRACTIONS = (0.0, -1.0, 1e-5, 1.0, 1e30, 1e-40, float("inf"), float("nan"))
_DEFAULT_ALIGNMENT = 32
# More bytes of tensors are never added; the file is then cut off.
_MOST_DATA = 4 << 20
# Types of whole numbers, such as tables of tokens.
_WHOLE = range(24, 28)
# All values of float32 are below 0.1; read as other types, most are numbers, and few are none.
_VALUES = (np.arange(-50, 50, dtype=np.float32) / 512).tobytes()
_KIND_BY_ID = {int(kind): kind for kind in FILE_TYPES}


@dataclass
class Key:
    """A key: its name, the number of its type, and the bytes of its value."""

    name: bytes
    type: int
    value: bytes


@dataclass
class TensorRow:
    """A row of the tensor table. `sizes` are innermost first, as in the file."""

    name: bytes
    sizes: list[int]
    type: int
    # Added to the offset at which the tensor belongs.
    shift: int = 0


@dataclass
class Header:
    """The header of a file. `rest` are bytes after it that were not understood."""

    version: int = 3
    keys: list[Key] = field(default_factory=list)
    tensors: list[TensorRow] = field(default_factory=list)
    rest: bytes = b""

    @property
    def alignment(self) -> int:
        for key in self.keys:
            if key.name == b"general.alignment" and len(key.value) == 4:
                return max(1, min(int.from_bytes(key.value, "little"), 1 << 16))
        return _DEFAULT_ALIGNMENT

    def encode(self) -> bytes:
        """Return the bytes of the header, with offsets that leave each tensor its place."""
        parts = [b"GGUF", struct.pack("<IQQ", self.version, len(self.tensors), len(self.keys))]
        parts += [_string(key.name) + struct.pack("<I", key.type) + key.value for key in self.keys]
        offset = 0
        for row in self.tensors:
            sizes = struct.pack(f"<I{len(row.sizes)}Q", len(row.sizes), *row.sizes)
            place = (offset + row.shift) % 2**64
            parts.append(_string(row.name) + sizes + struct.pack("<IQ", row.type, place))
            offset += -(-_num_bytes(row) // self.alignment) * self.alignment
        return b"".join(parts) + self.rest


def parse(data: bytes) -> Header | None:
    """Take a header apart; None if it is damaged before the end of the tensor table."""
    try:
        return _Reader(data).header()
    except (struct.error, IndexError):
        return None


def header_of(data: bytes) -> bytes:
    """Return the header of a whole file."""
    header = parse(data)
    assert header is not None
    header.rest = b""
    return header.encode()


def whole_file(data: bytes) -> bytes:
    """Return a file with this header, and bytes for its tensors: small numbers that repeat, or zeros."""
    header = parse(data)
    if header is None or not header.tensors or header.rest:
        return data
    content = bytearray(bytes(-len(data) % header.alignment))
    for row in header.tensors:
        size = -(-_num_bytes(row) // header.alignment) * header.alignment
        if len(content) + size > _MOST_DATA:
            break
        content += bytes(size) if row.type in _WHOLE else (_VALUES * (size // len(_VALUES) + 1))[:size]
    return data + content


def mutate_gguf(data: bytes, rng: random.Random) -> bytes:
    """Change keys and tensors of a header by their meaning; rarely bytes."""
    header = parse(data)
    if header is None or rng.random() < 0.05:
        return mutate_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if header.keys and (not header.tensors or rng.random() < 0.7):
            _change_keys(header.keys, rng)
        elif header.tensors:
            _change_tensors(header.tensors, rng)
    return header.encode()


def _change_keys(keys: list[Key], rng: random.Random) -> None:
    place = rng.randrange(len(keys))
    key = keys[place]
    match rng.randrange(12):
        case 0:
            del keys[place]
        case 1:
            keys.append(Key(key.name + rng.choice((b".x", b"_2")), key.type, key.value))
        case 2:
            key.name = mutate_bytes(key.name, rng)
        case 3:  # the value of another key
            other = rng.choice(keys)
            key.type, key.value = other.type, other.value
        case 4:
            other = rng.choice(keys)
            key.name, other.name = other.name, key.name
        case _:
            key.value = _changed(key.type, key.value, rng)


def _changed(kind: int, value: bytes, rng: random.Random) -> bytes:
    """Return another value of a type."""
    if kind == _STRING:
        text = mutate_bytes(value[8:], rng) if rng.random() < 0.7 else rng.choice((b"", b"none", b"llama"))
        return _string(text)
    if kind == _ARRAY:
        return _changed_array(value, rng)
    return _scalar(kind, value, rng)


def _scalar(kind: int, value: bytes, rng: random.Random) -> bytes:
    size = _SIZES.get(kind, 1)
    if kind == 7:
        return bytes([value[0] ^ 1]) if value else b"\0"
    if kind in (6, 12):
        return struct.pack("<f" if kind == 6 else "<d", rng.choice(_FRACTIONS))
    near = int.from_bytes(value, "little") + rng.choice((1, -1, 8, -8))
    return (near if rng.random() < 0.4 else rng.choice(NUMBERS)).__mod__(256**size).to_bytes(size, "little")


def _changed_array(value: bytes, rng: random.Random) -> bytes:
    kind, count = struct.unpack_from("<IQ", value)
    items = _items(kind, count, value[12:])
    if items is None:
        return mutate_bytes(value, rng)
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(len(items) + 1)
        match rng.randrange(5):
            case 0:
                del items[place : place + rng.choice((1, 1, 100))]
            case 1 if items:
                items.insert(place, rng.choice(items))
            case 2 if items:
                del items[place:]
            case _ if place < len(items):
                items[place] = _changed(kind, items[place], rng)
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def _items(kind: int, count: int, data: bytes) -> list[bytes] | None:
    if kind in _SIZES:
        size = _SIZES[kind]
        return [data[i * size : (i + 1) * size] for i in range(count)]
    if kind != _STRING:
        return None
    items, place = [], 0
    for _ in range(count):
        end = place + 8 + int.from_bytes(data[place : place + 8], "little")
        items.append(data[place:end])
        place = end
    return items


def _change_tensors(tensors: list[TensorRow], rng: random.Random) -> None:
    place = rng.randrange(len(tensors))
    row = tensors[place]
    match rng.randrange(9):
        case 0:
            del tensors[place]
        case 1:
            tensors.append(TensorRow(row.name + rng.choice((b".x", b"2")), list(row.sizes), row.type))
        case 2:
            row.name = mutate_bytes(row.name, rng)
        case 3:
            other = rng.choice(tensors)
            row.name, other.name = other.name, row.name
        case 4:
            row.type = (
                int(rng.choice(sorted(FILE_TYPES))) if rng.random() < 0.9 else rng.choice((4, 99, 2**31))
            )
        case 5 if row.sizes:
            row.sizes[rng.randrange(len(row.sizes))] = rng.choice((0, 1, 2, 32, 256, 2**20, 2**32, 2**63))
        case 6:
            row.sizes = rng.choice((row.sizes[::-1], row.sizes[:1], [*row.sizes, 1], [1, *row.sizes], []))
        case 7:
            row.shift = rng.choice((1, 8, 32, -32, 2**20, 2**63))
        case _ if row.sizes:
            axis = rng.randrange(len(row.sizes))
            row.sizes[axis] = max(0, row.sizes[axis] + rng.choice((1, -1, 32, -32, row.sizes[axis])))


def _num_bytes(row: TensorRow) -> int:
    kind: QuantType | None = _KIND_BY_ID.get(row.type)
    if kind is None or not row.sizes:
        return 0
    count = 1
    for size in row.sizes:
        count = min(count * size, 1 << 40)
    return count // kind.block_size * kind.block_bytes


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


class _Reader:
    """Reads a header from the beginning of bytes. Raises struct.error or IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 4

    def header(self) -> Header:
        version, tensor_count, key_count = self._numbers("IQQ")
        if max(tensor_count, key_count) > len(self._data):
            raise IndexError
        keys = [self._key() for _ in range(key_count)]
        tensors = [self._tensor() for _ in range(tensor_count)]
        end = -(-self._place // _DEFAULT_ALIGNMENT) * _DEFAULT_ALIGNMENT
        rest = self._data[self._place :] if len(self._data) > end or not tensors else b""
        return Header(version, keys, tensors, rest)

    def _key(self) -> Key:
        name = self._text()
        (kind,) = self._numbers("I")
        begin = self._place
        self._skip(kind, 0)
        return Key(name, kind, self._data[begin : self._place])

    def _skip(self, kind: int, depth: int) -> None:
        if kind in _SIZES:
            self._take(_SIZES[kind])
        elif kind == _STRING:
            self._text()
        elif kind == _ARRAY and depth < 4:
            inner, count = self._numbers("IQ")
            if inner in _SIZES:
                self._take(_SIZES[inner] * count)
            else:
                for _ in range(min(count, len(self._data))):
                    self._skip(inner, depth + 1)
        else:
            raise IndexError

    def _tensor(self) -> TensorRow:
        name = self._text()
        (dimensions,) = self._numbers("I")
        if dimensions > 16:
            raise IndexError
        sizes = list(self._numbers(f"{dimensions}Q"))
        kind, _ = self._numbers("IQ")
        return TensorRow(name, sizes, kind)

    def _text(self) -> bytes:
        (length,) = self._numbers("Q")
        return self._take(length)

    def _numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack("<" + form, self._take(struct.calcsize("<" + form)))

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._place:
            raise IndexError
        begin, self._place = self._place, self._place + count
        return self._data[begin : self._place]
