"""The metadata section of a GGUF file: typed keys and values, every byte of them checked.

Scalars and strings become Python objects at once, arrays stay in the map: numbers as read-only NumPy views,
strings as `StringArray`. The meaning of the keys is decided elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chaski.errors import GGUFError, UnsupportedError
from chaski.formats.string_array import StringArray, find_strings

Scalar: TypeAlias = int | float | bool | str
Array: TypeAlias = "NDArray[Any] | StringArray | tuple[Array, ...]"
GGUFValue: TypeAlias = "Scalar | Array"

# Far beyond any model, and low enough that a hostile file costs neither seconds nor memory.
MAX_KEYS = 1 << 16
MAX_NAME_BYTES = (1 << 16) - 1
MAX_TEXT_BYTES = 1 << 25  # of all names and string values together
MAX_STRINGS = 1 << 21  # in all arrays together; the largest vocabularies and their merges have 2^20
MAX_ARRAYS = 1 << 16
MAX_NESTING = 8
_SMALLEST_ENTRY = 14  # a key of one byte, its length, the type and a value of one byte

_u32 = struct.Struct("<I")
_u64 = struct.Struct("<Q")


class ValueType(IntEnum):
    """The value types of the format, with their numbers in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


NUMBERS: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}

_KINDS_OF_ARRAYS = {"b": "list[bool]", "i": "list[int]", "u": "list[int]", "f": "list[float]"}


def kind_name(value: object) -> str:
    """Return the kind of a metadata value as `GGUFFile.get` takes it: `int`, or `list[str]` for instance."""
    if isinstance(value, StringArray):
        return "list[str]"
    if isinstance(value, np.ndarray):
        return _KINDS_OF_ARRAYS.get(value.dtype.kind, "list[Any]")
    return "list[list[Any]]" if isinstance(value, tuple) else type(value).__name__


TRUNCATED = "truncated: "
"""The beginning of messages about files that end too early."""


class Cursor:
    """A place in a mapped file that moves on with every read and never past the end; it starts at `begin`."""

    def __init__(self, path: Path, data: NDArray[np.uint8], begin: int = 0) -> None:
        self.path = path
        self.data = data
        self.view = data.data
        self.begin = begin
        self.offset = begin
        self._text_bytes = 0

    def error(self, message: str, offset: int, kind: Callable[[str], Exception] = GGUFError) -> Exception:
        """An error that names the file and the byte."""
        hint = "; the file is incomplete: download or copy it again" if message.startswith(TRUNCATED) else ""
        return kind(f"{self.path}: {message} (at byte {offset}){hint}")

    def skip(self, count: int, what: str) -> int:
        """Move on by `count` bytes and return where they begin."""
        begin = self.offset
        left = len(self.view) - begin
        if count > left:
            raise self.error(f"truncated: {what} takes {count} bytes, {left} are left", begin)
        self.offset = begin + count
        return begin

    def u32(self, what: str) -> int:
        value: int = _u32.unpack_from(self.view, self.skip(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _u64.unpack_from(self.view, self.skip(8, what))[0]
        return value

    def text(self, what: str) -> str:
        """Read a string."""
        length = self.u64(f"the length of {what}")
        begin = self.skip(length, what)
        self._text_bytes += length
        if self._text_bytes > MAX_TEXT_BYTES:
            problem = f"{what} has {length} bytes; at most {MAX_TEXT_BYTES} of text are read in all"
            raise self.error(problem, begin, UnsupportedError)
        try:
            return str(self.view[begin : self.offset], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8", begin + error.start) from None

    def name(self, what: str) -> str:
        """Read the name of a key or a tensor."""
        begin = self.offset
        name = self.text(what)
        if not 1 <= self.offset - begin - 8 <= MAX_NAME_BYTES:
            raise self.error(f"{what} must have 1 to {MAX_NAME_BYTES} bytes", begin)
        return name

    def count(self, value: int, what: str, smallest: int, limit: int) -> int:
        """Check a number of things of at least `smallest` bytes that the file claims to hold from here on."""
        left = len(self.view) - self.offset
        if value * smallest > left:
            raise self.error(f"truncated: {value} {what} cannot fit in the {left} bytes left", self.offset)
        if value > limit:
            raise self.error(f"{value} {what}; at most {limit} are read", self.offset, UnsupportedError)
        return value


class MetadataReader:
    """A sequential reader of the entries, which counts their cost."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._strings = 0
        self._arrays = 0

    def read(self, count: int) -> dict[str, GGUFValue]:
        """Read `count` entries from the cursor on."""
        self._cursor.count(count, "keys", _SMALLEST_ENTRY, MAX_KEYS)
        entries: dict[str, GGUFValue] = {}
        for index in range(count):
            begin = self._cursor.offset
            key = self._cursor.name(f"the name of key {index}")
            if key in entries:
                raise self._cursor.error(f"key {key!r} appears twice", begin)
            entries[key] = self._value(self._type(f"key {key!r}"), f"the value of key {key!r}")
        return entries

    def _type(self, what: str) -> ValueType:
        begin = self._cursor.offset
        number = self._cursor.u32(f"the type of {what}")
        try:
            return ValueType(number)
        except ValueError:
            raise self._cursor.error(f"{what} has the unknown value type {number}", begin) from None

    def _value(self, type: ValueType, what: str) -> GGUFValue:
        if type is ValueType.STRING:
            return self._cursor.text(what)
        if type is ValueType.ARRAY:
            return self._array(what, 1)
        scalar: Scalar = self._numbers(type, 1, what)[0].item()
        return scalar

    def _array(self, what: str, depth: int) -> Array:
        begin = self._cursor.offset
        self._arrays += 1
        if depth > MAX_NESTING or self._arrays > MAX_ARRAYS:
            raise self._cursor.error(f"{what} has too many arrays inside arrays", begin, UnsupportedError)
        type = self._type(f"the elements of {what}")
        count = self._cursor.u64(f"the length of {what}")
        if type is ValueType.STRING:
            return self._string_array(count, what)
        if type is ValueType.ARRAY:
            self._cursor.count(count, f"arrays in {what}", 12, MAX_ARRAYS)
            return tuple(self._array(what, depth + 1) for _ in range(count))
        return self._numbers(type, count, what)

    def _numbers(self, type: ValueType, count: int, what: str) -> NDArray[Any]:
        dtype = NUMBERS[type]
        begin = self._cursor.skip(count * dtype.itemsize, what)
        stored = self._cursor.data[begin : self._cursor.offset]
        if type is ValueType.BOOL and stored.max(initial=0) > 1:
            raise self._cursor.error(f"{what} has a bool that is neither 0 nor 1", begin)
        return stored.view(dtype)

    def _string_array(self, count: int, what: str) -> StringArray:
        cursor = self._cursor
        self._strings += cursor.count(count, f"strings in {what}", 8, MAX_STRINGS - self._strings)
        offsets = find_strings(cursor.data, cursor.offset, count)
        end = int(offsets[-1])
        if len(offsets) <= count:
            raise cursor.error(f"truncated: string {len(offsets) - 1} of {what} is cut off", end)
        cursor.offset = end
        return StringArray(cursor.data, offsets)
