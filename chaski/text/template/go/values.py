"""The values that a Go template can meet: a closed set, as small as Go's own kinds.

`None` is Go's nil without a type; `bool`, `int`, `float`, `complex` and `str` are themselves. A Go string is
bytes, so a `str` here may hold single bytes that are not text, as Python's `surrogateescape` writes them.
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
    """A list. `is_nil` marks a list that was never made: it is written as JSON's null."""

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
    """A map of strings. Its creator orders the keys by their bytes, as Go prints them."""

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
    """Return JSON data as Go decodes it: numbers are float64. Raises TemplateError for anything else."""
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
    """Text as Go holds it: half of a surrogate pair cannot be written in UTF-8 and becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str.__str__(text)


def to_bytes(text: str) -> bytes:
    """The bytes of a Go string."""
    return text.encode("utf-8", "surrogateescape")


def from_bytes(data: bytes) -> str:
    """The Go string of these bytes."""
    return data.decode("utf-8", "surrogateescape")


def sorted_items(items: Mapping[str, Value]) -> dict[str, Value]:
    """The items by the bytes of their keys."""
    return {key: items[key] for key in sorted(items, key=to_bytes)}


def type_name(value: Value) -> str:
    """Go's name of the value's type."""
    match value:
        case None:
            return "<nil>"
        case Slice() | Map() | Struct():
            return value.type_name
        case _:
            return _SCALARS[type(value)]


def is_true(value: Value) -> bool:
    """Go's truth: not zero, not empty, not nil. A struct is always true."""
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
    """Ask the meter before text of `length` characters and all text in the values is made -> its length.

    Values that are not text count as little. Escapes and quotes may still make a few characters of each.
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
        raise TemplateError("the conversation holds a number that is too large") from error
