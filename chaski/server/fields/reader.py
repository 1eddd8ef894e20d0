"""`Fields`: read a JSON object of a request field by field. Null counts as absent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from chaski.errors import OptionError
from chaski.options import OPTIONS, Kind

__all__ = ["MAX_ITEMS", "Fields"]

MAX_ITEMS = 20_000
"""Largest number of items of a list."""

T = TypeVar("T")
D = TypeVar("D")

_NAMES = {str: "a string", bool: "true or false", dict: "an object", list: "a list"}


class Fields:
    """The fields of an object. Every method raises OptionError for a value of the wrong type."""

    def __init__(self, data: object, where: str = "") -> None:
        """Check that `data` is an object. `where` is its path in the request, for error messages."""
        self.where = where
        self.data: Mapping[str, Any] = self._checked(where or "the request", data, dict)

    def has(self, name: str) -> bool:
        """Return whether the field is present and not null."""
        return self.data.get(name) is not None

    def text(self, *names: str, default: str = "") -> str:
        """Return the string of the first of several names that is present."""
        found = next((name for name in names if self.has(name)), None)
        return default if found is None else self._checked(found, self.data[found], str)

    def text_or_none(self, name: str) -> str | None:
        """Return a string; None if it is absent."""
        return self._checked(name, self.data[name], str) if self.has(name) else None

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        return self._checked(name, self.data[name], bool) if self.has(name) else default

    def integer(self, name: str, default: D) -> int | D:
        """Return a whole number, which may be written with a fraction of 0."""
        if not self.has(name):
            return default
        value = self.data[name]
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        self._require(is_whole and not isinstance(value, bool), name, "an integer")
        return int(value)

    def number(self, name: str, default: D) -> float | D:
        """Return a finite number."""
        if not self.has(name):
            return default
        value = self.data[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
        self._require(is_number, name, "a number")
        return float(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object; an empty one if it is absent."""
        return self._checked(name, self.data[name], dict) if self.has(name) else {}

    def items(self, name: str) -> Sequence[Any]:
        """Return a list of at most `MAX_ITEMS` items; an empty one if it is absent."""
        found = self._checked(name, self.data[name], list) if self.has(name) else []
        if len(found) > MAX_ITEMS:
            raise OptionError(f"{self._path(name)} has {len(found)} items; at most {MAX_ITEMS} are allowed")
        return found

    def objects(self, name: str) -> Iterator[Fields]:
        """Yield the objects of a list."""
        for index, item in enumerate(self.items(name)):
            yield Fields(item, f"{self._path(name)}[{index}]")

    def texts(self, name: str) -> list[str]:
        """Return a list of strings; a single string is a list of one."""
        if isinstance(self.data.get(name), str):
            return [self.data[name]]
        return [self._checked(f"{name}[{index}]", item, str) for index, item in enumerate(self.items(name))]

    def integers(self, name: str) -> list[int]:
        """Return a list of whole numbers."""
        found = self.items(name)
        self._require(all(type(item) is int for item in found), name, "a list of integers")
        return list(found)

    def options(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the options that are there, by their own names. names: option by the name of its field."""
        found = {
            ours: self._option(theirs, OPTIONS[ours].kind)
            for theirs, ours in names.items()
            if self.has(theirs)
        }
        # Clients send an empty list where nothing is set, and the model may have stop texts of its own.
        return {name: value for name, value in found.items() if name != "stop" or value}

    def receipt(self) -> dict[str, Any]:
        """Return the option `receipt`, which the field of that name sets; nothing if it is absent."""
        return {"receipt": self.data["receipt"]} if self.has("receipt") else {}

    def _option(self, name: str, kind: Kind) -> Any:
        match kind:
            case Kind.INTEGER:
                return self.integer(name, None)
            case Kind.NUMBER:
                return self.number(name, None)
            case Kind.FLAG:
                return self.flag(name, False)
            case Kind.TEXT:
                return self.text(name)
            case Kind.TEXTS:
                return self.texts(name)
            case Kind.TOKENS:
                return self.integers(name)
            case _:
                return dict(self.mapping(name))

    def _checked(self, name: str, value: object, kind: type[T]) -> T:
        if not isinstance(value, kind):
            raise OptionError(f"{self._path(name)} must be {_NAMES[kind]}")
        return value

    def _require(self, condition: bool, name: str, wanted: str) -> None:
        if not condition:
            raise OptionError(f"{self._path(name)} must be {wanted}")

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where and name != self.where else name
