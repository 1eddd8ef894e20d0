"""Regular expressions of ECMA-262, the dialect of JSON Schema's `pattern`, as trees.

Matching is by code points, as with the flag `u`, but escapes that mean nothing stand for their character, as
without it. Python's `(?P<name>…)`, `\\A`, `\\Z` and the flags `(?i)`, `(?s)` at the beginning are read, too.
"""

from __future__ import annotations

import re
from typing import NoReturn, TypeAlias

from msgspec import Struct

from chaski.sample.schema.characters import (
    ANY,
    DIGITS,
    DOT,
    SPACES,
    WORD,
    Ranges,
    class_items,
    complement,
    folded,
    union,
)

__all__ = [
    "ALL",
    "Boundary",
    "Chars",
    "Choice",
    "Concat",
    "End",
    "Look",
    "Node",
    "PatternError",
    "Property",
    "Repeat",
    "Start",
    "parse",
]

_MOST_NESTED = 100
_CLASSES = {"d": DIGITS, "w": WORD, "s": SPACES}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "v": 11, "f": 12, "0": 0}
_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d+)(,(\d*))?\})\??")
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_$][\w$]*>)")
_FLAGS = re.compile(r"\(\?([a-z]+)\)")


class PatternError(ValueError):
    """A pattern that cannot be used. The text gives the reason."""


class Chars(Struct, frozen=True):
    """One character of a set."""

    ranges: Ranges


class Property(Struct, frozen=True):
    """One character of a Unicode property, or of a set that contains some, spelled in Rust's syntax."""

    text: str


class Concat(Struct, frozen=True):
    """Nodes in a row."""

    parts: tuple[Node, ...]


class Choice(Struct, frozen=True):
    """One of several nodes."""

    options: tuple[Node, ...]


class Repeat(Struct, frozen=True):
    """A node several times; `most` None is without limit."""

    part: Node
    least: int
    most: int | None


class Start(Struct, frozen=True):
    """The beginning of the text."""


class End(Struct, frozen=True):
    """The end of the text."""


class Boundary(Struct, frozen=True):
    """The boundary of a word, or the lack of one if `is_negative`."""

    is_negative: bool


class Look(Struct, frozen=True):
    """The text from here on begins with a node, or does not if `is_negative`."""

    part: Node
    is_negative: bool


Node: TypeAlias = Chars | Property | Concat | Choice | Repeat | Start | End | Boundary | Look

ALL = Repeat(Chars(ANY), 0, None)
"""Any text."""


def parse(pattern: str) -> Node:
    """Read a pattern. Raises PatternError."""
    return _Parser(pattern).whole()


class _Parser:
    def __init__(self, pattern: str) -> None:
        flags = _FLAGS.match(pattern)
        names = flags[1] if flags else ""
        if set(names) - set("isu"):
            raise PatternError(f"the flags (?{names}) cannot be followed")
        self._text = pattern[flags.end() :] if flags else pattern
        self._folds = "i" in names
        self._dot = ANY if "s" in names else DOT
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            self._fail("it has a closing parenthesis without an opening one")
        return node

    def _fail(self, why: str) -> NoReturn:
        raise PatternError(why)

    def _next(self, count: int = 1) -> str:
        found = self._text[self._at : self._at + count]
        if len(found) < count:
            self._fail("it ends too early")
        self._at += count
        return found

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > _MOST_NESTED:
            self._fail("its groups are nested too deeply")
        options = [self._concat()]
        while self._take("|"):
            options.append(self._concat())
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _concat(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._quantified(self._atom()))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def _quantified(self, part: Node) -> Node:
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return part
        self._at = found.end()
        sign, least, comma, most = found.groups()
        if sign:
            return Repeat(part, int(sign == "+"), 1 if sign == "?" else None)
        top = (int(most) if most else None) if comma else int(least)
        if top is not None and top < int(least):
            self._fail(f"in {found[0]} the numbers are out of order")
        return Repeat(part, int(least), top)

    def _atom(self) -> Node:
        letter = self._next()
        match letter:
            case "^":
                return Start()
            case "$":
                return End()
            case ".":
                return Chars(self._dot)
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                self._fail(f"there is nothing that {letter} could repeat")
        return self._one(ord(letter))

    def _one(self, code: int) -> Node:
        """A character; two halves of a surrogate pair are one."""
        if 0xD800 <= code < 0xDC00 and (low := self._low_surrogate()):
            code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
        ranges = union([(code, code)])
        return Chars(folded(ranges) if self._folds else ranges)

    def _low_surrogate(self) -> int | None:
        found = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})|([\udc00-\udfff])").match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return int(found[1], 16) if found[1] else ord(found[2])

    def _group(self) -> Node:
        for opening, is_negative in (("?=", False), ("?!", True)):
            if self._take(opening):
                return Look(self._closed(), is_negative)
        if self._take("?<=") or self._take("?<!"):
            self._fail("look-behind, (?<=…) and (?<!…), cannot be followed")
        if found := _GROUP.match(self._text, self._at):
            self._at = found.end()
        elif self._take("?"):
            self._fail(f"the group (?{self._text[self._at : self._at + 8]} is unknown")
        return self._closed()

    def _closed(self) -> Node:
        node = self._choice()
        if not self._take(")"):
            self._fail("a group is not closed")
        return node

    def _escape(self) -> Node:
        letter = self._next()
        match letter:
            case "b" | "B":
                return Boundary(letter == "B")
            case "A":
                return Start()
            case "Z" | "z":
                return End()
            case "k" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9":
                self._fail(f"references to groups, \\{letter}, cannot be followed")
            case "p" | "P":
                return Property(self._property(letter))
        found = self._class_escape(letter)
        return self._one(found) if isinstance(found, int) else Chars(found)

    def _property(self, letter: str) -> str:
        found = re.compile(r"\{[\w=]+\}").match(self._text, self._at)
        if found is None:
            self._fail(f"\\{letter} needs a property in braces")
        self._at = found.end()
        return f"\\{letter}{found[0]}"

    def _class_escape(self, letter: str) -> int | Ranges:
        """The character or the set that an escape means, inside of classes and outside."""
        if letter.lower() in _CLASSES:
            ranges = _CLASSES[letter.lower()]
            return ranges if letter.islower() else complement(ranges)
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "c" and re.compile("[A-Za-z]").match(self._text, self._at):
            return ord(self._next()) & 31
        if letter in "xu":
            return self._hexadecimal(letter)
        return ord(letter)

    def _hexadecimal(self, letter: str) -> int:
        digits = r"[0-9a-fA-F]{2}" if letter == "x" else r"[0-9a-fA-F]{4}"
        found = re.compile(rf"({digits})|\{{([0-9a-fA-F]{{1,6}})\}}").match(self._text, self._at)
        if found is None:
            return ord(letter)
        self._at = found.end()
        code = int(found[1] or found[2], 16)
        if code > 0x10FFFF:
            self._fail(f"there is no character {found[0]}")
        return code

    def _class(self) -> Node:
        is_negative = self._take("^")
        ranges: list[tuple[int, int]] = []
        properties: list[str] = []
        while not self._take("]"):
            first = self._member(properties)
            following = self._text[self._at : self._at + 2]
            if isinstance(first, int) and following[:1] == "-" and following != "-]":
                self._at += 1
                ranges += self._range(first, self._member(properties))
            else:
                ranges += [(first, first)] if isinstance(first, int) else first
        return self._class_of(union(ranges), properties, is_negative)

    def _range(self, first: int, last: int | Ranges) -> Ranges:
        """A range; before another set the dash is a character."""
        if not isinstance(last, int):
            return ((first, first), (0x2D, 0x2D), *last)
        if last < first:
            self._fail(f"the range {chr(first)}-{chr(last)} is out of order")
        return ((first, last),)

    def _class_of(self, ranges: Ranges, properties: list[str], is_negative: bool) -> Node:
        ranges = folded(ranges) if self._folds else ranges
        if not properties:
            return Chars(complement(ranges) if is_negative else ranges)
        return Property(f"[{'^' * is_negative}{class_items(ranges)}{''.join(properties)}]")

    def _member(self, properties: list[str]) -> int | Ranges:
        letter = self._next()
        if letter != "\\":
            return self._joined(ord(letter))
        letter = self._next()
        if letter in "pP":
            properties.append(self._property(letter))
            return ()
        if letter == "b":
            return 8
        found = self._class_escape(letter)
        return self._joined(found) if isinstance(found, int) else found

    def _joined(self, code: int) -> int:
        if 0xD800 <= code < 0xDC00 and (low := self._low_surrogate()):
            return 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
        return code
