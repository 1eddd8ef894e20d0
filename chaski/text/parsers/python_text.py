"""Calls and literals in Python syntax, as models write them."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from chaski.text.parsers.json_text import load_json, readable
from chaski.text.parsers.pieces import FoundCall

WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_MAX_TRIES = 2000
# Python writes no integers with more than 4,300 digits.
_MAX_BITS = 14_000
_NAME = re.compile(r"[^\W\d][\w.\-]*")
_KEY = re.compile(r"\s*([^\W\d][\w\-]*)\s*=\s*")


class PythonStrings:
    """Follows the quotes of single-line strings over portions of text."""

    def __init__(self) -> None:
        self._quote = ""
        self._escaped = False

    @property
    def in_string(self) -> bool:
        """Return whether the text so far ends inside a string."""
        return bool(self._quote)

    def track(self, text: str, start: int, end: int) -> None:
        """Read `text[start:end]`."""
        for match in _QUOTES.finditer(text, start, end):
            mark, escapes = match[2], len(match[1])
            if escapes % 2 == 1 and self._quote:
                continue
            if not self._quote:
                self._quote = mark
            elif self._quote == mark:
                self._quote = ""


_QUOTES = re.compile(r"(\\*)(['\"])")


def load_literal(text: str) -> Any:
    """Return the value of a Python literal. Raises ValueError for anything else."""
    try:
        with warnings.catch_warnings(action="ignore"):
            node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("no literal") from error
    return _literal(node)


def load_calls(text: str) -> list[FoundCall]:
    """Return calls in Python syntax with named literals: `f(a=1)`, one per line or in a list.

    Strings may also be unescaped, with line breaks and quotes inside, as some templates write them.
    Raises ValueError, SyntaxError, RecursionError and MemoryError.
    """
    source = text.strip()
    try:
        return _strict_calls(source)
    except (ValueError, SyntaxError):
        return _RawCalls(source).read()


def _strict_calls(source: str) -> list[FoundCall]:
    with warnings.catch_warnings(action="ignore"):  # about escapes such as \\d
        tree = ast.parse(source).body
    nodes = [node.value for node in tree if isinstance(node, ast.Expr)]
    if len(nodes) != len(tree) or not nodes:
        raise ValueError("statements are not calls")
    flat = [item for node in nodes for item in (node.elts if isinstance(node, ast.List) else [node])]
    return [_call(node) for node in flat]


def _call(node: ast.expr) -> FoundCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("a call must have named arguments")
    name = ast.unparse(node.func).replace(" - ", "-")
    if not re.fullmatch(r"[\w.\-]+", name) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("the name of a call must be plain")
    arguments = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    return FoundCall(name.removesuffix(".call"), arguments)


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() as text):
            return readable(text)
        case ast.Constant(value=None | bool() as value):
            return value
        case ast.Constant(value=int() | float() as number) if _is_finite(number):
            return number
        case ast.Name(id=name) if name in WORDS:
            return WORDS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return -_literal(node.operand)
        case ast.List() | ast.Tuple():
            return [_literal(item) for item in node.elts]
        case ast.Dict():
            keys = [_literal(key) for key in node.keys if key is not None]
            return dict(zip(map(str, keys), map(_literal, node.values), strict=True))
        case _:
            raise ValueError("an argument is not a literal")


def _is_finite(number: int | float) -> bool:
    if isinstance(number, int):
        return number.bit_length() <= _MAX_BITS
    return abs(number) <= sys.float_info.max


class _RawCalls:
    """Reads calls with unescaped strings: a quote ends a string if a call can continue after it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tries = 0

    def read(self) -> list[FoundCall]:
        source = self._source
        listed = source.startswith("[") and source.endswith("]")
        self._end = len(source) - listed
        found = self._calls(int(listed))
        if found is None:
            raise ValueError("no calls")
        return found

    def _calls(self, position: int) -> list[FoundCall] | None:
        """Return the calls from a position to the end."""
        position = self._after_blank(position)
        name = _NAME.match(self._source, position, self._end)
        if name is None or self._source[name.end() : name.end() + 1] != "(":
            return None
        start = self._after_blank(name.end() + 1)
        if self._source[start : start + 1] == ")":
            return self._behind(start, FoundCall(name[0], {}))
        for arguments, end in self._arguments(start):
            found = self._behind(end, FoundCall(name[0], arguments))
            if found is not None:
                return found
        return None

    def _behind(self, position: int, call: FoundCall) -> list[FoundCall] | None:
        """Return the call and those after its bracket at `position`."""
        behind = self._after_blank(position + 1)
        if behind >= self._end:
            return [call]
        rest = self._calls(behind + 1) if self._source[behind] in ",;" else None
        return None if rest is None else [call, *rest]

    def _arguments(self, position: int) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the possible readings of arguments, each with the position of the bracket after them."""
        key = _KEY.match(self._source, position, self._end)
        if key is None:
            return
        for value, end in self._values(key.end()):
            behind = self._after_blank(end)
            if self._source[behind : behind + 1] == ")":
                yield {key[1]: value}, behind
            elif self._source[behind : behind + 1] == ",":
                for others, last in self._arguments(behind + 1):
                    yield {key[1]: value, **others}, last

    def _values(self, position: int) -> Iterator[tuple[Any, int]]:
        """Yield the possible readings of a value, the shortest first, each with the position after it."""
        quote = self._source[position : position + 1]
        is_text = quote in ("'", '"')
        ends = (quote,) if is_text else (",", ")")
        end = position
        while (end := self._next(ends, end + 1)) >= 0:
            self._tries += 1
            if self._tries > _MAX_TRIES:
                raise ValueError("too many quotes")
            if is_text:
                yield self._source[position + 1 : end], end + 1
                continue
            text = self._source[position:end].strip()
            for load in (load_json, load_literal):
                try:
                    yield load(text), end
                    break
                except (ValueError, RecursionError):
                    continue

    def _next(self, marks: tuple[str, ...], start: int) -> int:
        found = [self._source.find(mark, start, self._end) for mark in marks]
        return min((position for position in found if position >= 0), default=-1)

    def _after_blank(self, position: int) -> int:
        while position < self._end and self._source[position].isspace():
            position += 1
        return position
