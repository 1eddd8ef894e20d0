"""The values that a Go template can contain: a closed set that mirrors Go's kinds.

`None` is Go's untyped nil; `bool`, `int`, `float`, `complex` and `str` stand for themselves. A Go string is
bytes, so a `str` here may contain single bytes that are not text, as Python's `surrogateescape` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from chaski.errors import TemplateError
from chaski.text.template.meter import current_meter

Value: TypeAlias = "None | bool | int | float | complex | str | Byte | Slice | Map | Struct"


@dataclass(frozen=True, slots=True)
class Byte:
    """One byte of a string: Go's uint8."""

    value: int


@dataclass(frozen=True, slots=True)
class Slice:
    """A list. `is_nil` marks a list that was never made, which is `null` in JSON."""

    items: Sequence[Value] = ()
    is_nil: bool = False
    type_name: ClassVar[str] = "[]interface {}"

    def text(self) -> str | None:
        """Return the text of the type's own `String` method, if it has one."""
        return None

    def for_json(self) -> Value:
        """Return the value that JSON shows instead of this one."""
        return self


@dataclass(frozen=True, slots=True)
class Map:
    """A map with string keys. Its creator orders the keys by their bytes, as Go prints them."""

    items: Mapping[str, Value]
    is_nil: bool = False
    type_name: ClassVar[str] = "map[string]interface {}"

    def text(self) -> str | None:
        """Return the text of the type's own `String` method, if it has one."""
        return None


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields in the order of their declaration."""

    fields: Mapping[str, Value]
    type_name: ClassVar[str] = "struct"
    json_names: ClassVar[Mapping[str, str]] = {}
    json_optional: ClassVar[frozenset[str]] = frozenset()


def from_json(value: object) -> Value:
    """Return JSON data as Go decodes it, with numbers as float64. Raises TemplateError for other data."""
    match value:
        case None | bool():
            return value
        case int() | float():
            return _as_float(value)
        case str():
            return from_text(value)
        case Mapping():
            return Map(sorted_items({from_text(str(key)): from_json(item) for key, item in value.items()}))
        case list() | tuple():
            return Slice([from_json(item) for item in value])
        case _:
            raise TemplateError(f"chat templates take plain data, not {type(value).__name__}: {value!r:.60}")


def from_text(text: str) -> str:
    """Return text as Go stores it; a lone surrogate cannot be written in UTF-8 and becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str.__str__(text)


def to_bytes(text: str) -> bytes:
    """Return the bytes of a Go string."""
    return text.encode("utf-8", "surrogateescape")


def from_bytes(data: bytes) -> str:
    """Return the Go string of these bytes."""
    return data.decode("utf-8", "surrogateescape")


def sorted_items(items: Mapping[str, Value]) -> dict[str, Value]:
    """Return the items in the order of their keys' bytes."""
    return {key: items[key] for key in sorted(items, key=to_bytes)}


def type_name(value: Value) -> str:
    """Return Go's name of the value's type."""
    match value:
        case None:
            return "<nil>"
        case Slice() | Map() | Struct():
            return value.type_name
        case _:
            return _SCALARS[type(value)]


def is_true(value: Value) -> bool:
    """Return Go's truth of a value: not zero, not empty, not nil. A struct is always true."""
    match value:
        case Slice() | Map():
            return bool(value.items)
        case Byte():
            return value.value != 0
        case Struct():
            return True
        case _:
            return bool(value)


def expect_text(values: Iterable[Value], length: int = 0) -> int:
    """Check with the meter for `length` characters plus all text in the values; return their length.

    Values that are not text count little, but escapes and quotes may turn each into a few characters.
    """
    meter = current_meter()
    pending = list(values)
    while pending:
        value = pending.pop()
        length += 1
        match value:
            case str():
                length += len(value)
            case Slice():
                pending += value.items
            case Map():
                length += sum(map(len, value.items))
                pending += value.items.values()
            case Struct():
                pending += value.fields.values()
        meter.expect(length)
    return length


def is_nil(value: Value) -> bool:
    """Return whether a value is nil, with a type or without."""
    return value is None or (isinstance(value, Slice | Map) and value.is_nil)


_SCALARS = {bool: "bool", int: "int", float: "float64", complex: "complex128", str: "string", Byte: "uint8"}


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError as error:
        raise TemplateError("the conversation contains a number that is too large") from error
