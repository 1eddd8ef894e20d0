"""GBNF, llama.cpp's language of grammars: from its text to nodes.

Source of the syntax: llama.cpp's description of its grammars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

__all__ = ["Choice", "GbnfNode", "GbnfParser", "Reference", "Repeat", "Terminal"]

_MAX_REPEATS = 2000
_BLANKS = " \t\r\n"
_MAX_DEPTH = 64
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_RULE = re.compile(r"\s*([A-Za-z0-9_-]+)\s*::=\s*")
_SPACE = re.compile(r"(?:[ \t]|#[^\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:\s|#[^\n]*)*")
_COUNTS = re.compile(r"\{\s*(\d{0,9})\s*(,?)\s*(\d{0,9})\s*\}")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\\\"\[\]nrt]))")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Terminal(Struct, frozen=True):
    """A literal part, in Lark. `is_blank`: it has only blanks and line breaks."""

    lark: str
    is_blank: bool = False


class Reference(Struct, frozen=True):
    name: str


class Repeat(Struct, frozen=True):
    item: GbnfNode
    suffix: str


class Choice(Struct, frozen=True):
    """A choice of sequences."""

    sequences: Sequence[Sequence[GbnfNode]]


GbnfNode: TypeAlias = "Terminal | Reference | Repeat | Choice"


class GbnfParser:
    """Reads one grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> Mapping[str, Choice]:
        """The rules by name. Raises ValueError with the place of the error."""
        found: dict[str, Choice] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            match = _RULE.match(self._text, self._at)
            if match is None:
                raise self._error("a rule, NAME ::= …, is expected")
            self._at = match.end()
            self._skip(_SPACE_AND_LINES)
            found[match[1]] = self._choice()
            self._skip(_SPACE_AND_LINES)
        return found

    def _choice(self) -> Choice:
        if self._depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} groups stand in each other")
        sequences = [self._sequence()]
        while self._take("|"):
            self._skip(_SPACE_AND_LINES)
            sequences.append(self._sequence())
        return Choice(sequences)

    def _sequence(self) -> list[GbnfNode]:
        items: list[GbnfNode] = []
        while (item := self._item()) is not None:
            self._skip(self._blank)
            while (suffix := self._suffix()) is not None:
                item = Repeat(item, suffix)
                self._skip(self._blank)
            items.append(item)
        return items

    def _item(self) -> GbnfNode | None:
        self._skip(self._blank)
        if self._text.startswith("::=", self._next_word()):
            return None  # the next rule begins
        match self._text[self._at : self._at + 1]:
            case '"':
                text = self._literal()
                return Terminal(json.dumps(text), is_blank=not text.strip(_BLANKS))
            case "[":
                return self._class()
            case ".":
                self._at += 1
                return Terminal("/(?s:.)/")
            case "(":
                return self._group()
            case "<" | "!":
                raise self._error("tokens are not taken; spell them as texts")
        match = _NAME.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return Reference(match[0])

    @property
    def _blank(self) -> re.Pattern[str]:
        """The pattern of blanks between the items of a sequence; line breaks are blank in groups only."""
        return _SPACE_AND_LINES if self._depth else _SPACE

    def _next_word(self) -> int:
        """Return the end of the blanks after a name, which here may be that of the next rule."""
        match = _NAME.match(self._text, self._at)
        if match is None:
            return self._at
        blank = _SPACE_AND_LINES.match(self._text, match.end())
        return match.end() if blank is None else blank.end()

    def _group(self) -> Choice:
        self._at += 1
        self._depth += 1
        self._skip(_SPACE_AND_LINES)
        found = self._choice()
        self._skip(_SPACE_AND_LINES)
        self._depth -= 1
        if not self._take(")"):
            raise self._error("a group is not closed")
        return found

    def _suffix(self) -> str | None:
        mark = self._text[self._at : self._at + 1]
        if mark in _REPEATS and mark:
            self._at += 1
            return mark
        if mark != "{":
            return None
        match = _COUNTS.match(self._text, self._at)
        if match is None or not (match[1] or match[3]):
            raise self._error("a repetition is {m}, {m,} or {m,n}")
        least = int(match[1] or 0)
        most = int(match[3]) if match[3] else (None if match[2] else least)
        if max(least, most or 0) > _MAX_REPEATS or (most is not None and most < least):
            raise self._error(
                f"a repetition is of at most {_MAX_REPEATS} times, and not of fewer than it begins with"
            )
        self._at = match.end()
        return f"{{{least},{'' if most is None else most}}}"

    def _literal(self) -> str:
        self._at += 1
        letters: list[str] = []
        while not self._take('"'):
            letters.append(self._letter())
        return "".join(letters)

    def _class(self) -> Terminal:
        """A class of characters."""
        self._at += 1
        negation = "^" if self._take("^") else ""
        ranges: list[str] = []
        is_blank = not negation
        while not self._take("]"):
            first = last = self._letter()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._letter()
            if last < first:
                raise self._error("a range of characters ends before it begins")
            ranges.append(f"\\x{{{ord(first):x}}}-\\x{{{ord(last):x}}}")
            is_blank = is_blank and first == last and first in _BLANKS
        if not ranges:
            raise self._error("a class of characters is empty")
        return Terminal(f"/[{negation}{''.join(ranges)}]/", is_blank)

    def _letter(self) -> str:
        if self._at >= len(self._text) or self._text[self._at] == "\n":
            raise self._error("a text or a class of characters is not closed")
        if self._text[self._at] != "\\":
            self._at += 1
            return self._text[self._at - 1]
        match = _ESCAPE.match(self._text, self._at)
        if match is None:
            raise self._error("an escape is unknown")
        self._at = match.end()
        if match[4]:
            return _ESCAPED.get(match[4], match[4])
        number = int(match[1] or match[2] or match[3], 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise self._error("an escape is no character")
        return chr(number)

    def _take(self, mark: str) -> bool:
        found = self._text.startswith(mark, self._at)
        self._at += len(mark) * found
        return found

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        self._at = self._at if match is None else match.end()

    def _error(self, what: str) -> ValueError:
        line = self._text.count("\n", 0, self._at) + 1
        return ValueError(f"line {line}: {what}, before {self._text[self._at : self._at + 20]!r}")
