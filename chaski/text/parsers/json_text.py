"""JSON as models write it: several consecutive values, in a code fence, and in portions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from msgspec import Struct

_IN_STRING = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}
_OUTSIDE = re.compile(r'["{}\[\]]')
_OUTSIDE_OF_BOTH = re.compile(r"""["'{}\[\]]""")
_SEPARATOR = re.compile(r"[\s;,]*")
_FENCE = re.compile(r"\A```(?:json|python|py)?")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
# JSON readers accept at least this many nested brackets; Python's writer fails at a few hundred.
_MAX_DEPTH = 128
# By default Python reads no integers with more digits.
_MAX_DIGITS = 4300


class JsonScanner(Struct):
    """Finds the end of a JSON value over portions of text.

    depth   number of open brackets
    quote   the quote of the string that the text ends in, empty outside of strings
    single  single quotes make strings, too, as in Python
    """

    depth: int = 0
    quote: str = ""
    escaped: bool = False
    single: bool = False

    @property
    def in_string(self) -> bool:
        """Return whether the text so far ends inside a string."""
        return bool(self.quote)

    def feed(self, text: str, start: int, end: int) -> int | None:
        """Read `text[start:end]`; return the position after the value if it ends there, else None."""
        position = start
        while position < end:
            if self.escaped:
                self.escaped = False
                position += 1
                continue
            match = self._marks.search(text, position, end)
            if match is None:
                return None
            position = match.end()
            if self._take(match.group()):
                return position
        return None

    def track(self, text: str, start: int, end: int) -> None:
        """Read `text[start:end]`, over any number of values."""
        position: int | None = start
        while position is not None:
            position = self.feed(text, position, end)

    @property
    def _marks(self) -> re.Pattern[str]:
        if self.quote:
            return _IN_STRING[self.quote]
        return _OUTSIDE_OF_BOTH if self.single else _OUTSIDE

    def _take(self, mark: str) -> bool:
        if mark == "\\":
            self.escaped = True
        elif mark in _IN_STRING:
            self.quote = "" if self.quote else mark
        else:
            self.depth += 1 if mark in "{[" else -1
            return self.depth <= 0
        return False


def json_values(text: str) -> Iterator[Any]:
    """Yield the values of a text, separated by blanks, commas and semicolons. Raises ValueError."""
    _check_depth(text)
    position = _after_blank(text, 0)
    while position < len(text):
        value, position = _DECODER.raw_decode(text, position)
        yield _readable(value) if "\\u" in text else value
        position = _after_blank(text, position)


def load_json(text: str) -> Any:
    """Return the only value of a text. Raises ValueError for anything else, and for Python's extensions."""
    return _decoded(_DECODER, text)


def load_enforced_json(text: str) -> Any:
    """`load_json` for text from a grammar: a number outside the range of doubles becomes the nearest one.

    Grammars cannot bound exponents, so such a number is valid JSON for its schema, and cutting the answer off
    would be worse.
    """
    return _decoded(_ENFORCED, text)


def unfenced(text: str) -> str:
    """Return the text without the code fence around it, if there is one."""
    stripped = text.strip()
    if not stripped.startswith("```"):
        return text
    return _FENCE.sub("", stripped).removesuffix("```")


def readable(text: str) -> str:
    """Return the text with U+FFFD for lone surrogates, which escapes can make but UTF-8 cannot encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _readable(value: Any) -> Any:
    match value:
        case str():
            return readable(value)
        case list():
            return [_readable(item) for item in value]
        case dict():
            return {readable(key): _readable(item) for key, item in value.items()}
        case _:
            return value


def _decoded(decoder: json.JSONDecoder, text: str) -> Any:
    _check_depth(text)
    value = decoder.decode(text)
    return _readable(value) if "\\u" in text else value


def _check_depth(text: str) -> None:
    """Raise ValueError if there are more nested brackets than other JSON readers accept."""
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match.group(), 0)
        if depth > _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_DEPTH} brackets are nested")


def _after_blank(text: str, position: int) -> int:
    match = _SEPARATOR.match(text, position)
    return position if match is None else match.end()


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if abs(number) != float("inf") else _no_number(text)


def _nearest(text: str) -> float:
    largest = sys.float_info.max
    return min(max(float(text), -largest), largest)


def _nearest_whole(text: str) -> int | float:
    return int(text) if len(text) <= _MAX_DIGITS else _nearest(text)


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
_ENFORCED = json.JSONDecoder(parse_constant=_no_number, parse_float=_nearest, parse_int=_nearest_whole)
