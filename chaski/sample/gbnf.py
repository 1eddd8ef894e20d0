"""GBNF, llama.cpp's language of grammars, into the rules of `llguidance`'s dialect of Lark.

`llguidance` reads an answer in pieces, each by a regular expression, and takes the longest piece that there
is. So everything that needs no recursion becomes one piece, as large as it gets: that is exact within a
piece, and quick. Where two pieces stand beside each other, the first one takes as much as it can; an answer
that would have to leave some of it to the second is not written. Blanks, for which that would happen often,
are read one by one instead. What is written always follows the grammar.
Source of the syntax: llama.cpp's description of its grammars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["is_gbnf", "lark_rules"]

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


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part that stands for itself, in Lark. `is_blank`: it only has blanks and line breaks."""

    lark: str
    is_blank: bool = False


@dataclass(frozen=True, slots=True)
class _Reference:
    name: str


@dataclass(frozen=True, slots=True)
class _Repeat:
    item: _Node
    suffix: str


@dataclass(frozen=True, slots=True)
class _Choice:
    """Sequences, one of which is taken."""

    sequences: Sequence[Sequence[_Node]]


_Node: TypeAlias = "_Piece | _Reference | _Repeat | _Choice"


def is_gbnf(text: str) -> bool:
    """Whether a grammar is in GBNF rather than in Lark."""
    return "::=" in text


def lark_rules(text: str) -> str:
    """The rules of a grammar in Lark; `answer` is what `root` was. Raises ValueError, which says where."""
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise ValueError("it has no rule root")
    for name, rule in rules.items():
        for other in _references(rule):
            if other not in rules:
                raise ValueError(f"rule {name:.80} names {other:.80}, which there is not")
    return _Writer(rules).write()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> Mapping[str, _Choice]:
        found: dict[str, _Choice] = {}
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

    def _choice(self) -> _Choice:
        if self._depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} groups stand in each other")
        sequences = [self._sequence()]
        while self._take("|"):
            self._skip(_SPACE_AND_LINES)
            sequences.append(self._sequence())
        return _Choice(sequences)

    def _sequence(self) -> list[_Node]:
        items: list[_Node] = []
        while (item := self._item()) is not None:
            self._skip(self._blank)
            while (suffix := self._suffix()) is not None:
                item = _Repeat(item, suffix)
                self._skip(self._blank)
            items.append(item)
        return items

    def _item(self) -> _Node | None:
        self._skip(self._blank)
        if self._text.startswith("::=", self._next_word()):
            return None  # the next rule begins
        match self._text[self._at : self._at + 1]:
            case '"':
                text = self._literal()
                return _Piece(json.dumps(text), is_blank=not text.strip(_BLANKS))
            case "[":
                return self._class()
            case ".":
                self._at += 1
                return _Piece("/(?s:.)/")
            case "(":
                return self._group()
            case "<" | "!":
                raise self._error("tokens are not taken; spell them as texts")
        match = _NAME.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return _Reference(match[0])

    @property
    def _blank(self) -> re.Pattern[str]:
        """What may stand between the items of a sequence: lines end it, but for those in groups."""
        return _SPACE_AND_LINES if self._depth else _SPACE

    def _next_word(self) -> int:
        """Where the blanks behind a name end, which here may be that of the next rule."""
        match = _NAME.match(self._text, self._at)
        if match is None:
            return self._at
        blank = _SPACE_AND_LINES.match(self._text, match.end())
        return match.end() if blank is None else blank.end()

    def _group(self) -> _Choice:
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

    def _class(self) -> _Piece:
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
        return _Piece(f"/[{negation}{''.join(ranges)}]/", is_blank)

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


def _references(node: _Node) -> Iterator[str]:
    """The rules that a node names."""
    match node:
        case _Reference(name):
            yield name
        case _Repeat(item):
            yield from _references(item)
        case _Choice(sequences):
            for sequence in sequences:
                for item in sequence:
                    yield from _references(item)


@dataclass(slots=True)
class _Writer:
    """Rules in Lark. Those in capitals are pieces, see above."""

    rules: Mapping[str, _Choice]
    _plain: set[str] = field(init=False)
    _numbers: dict[str, int] = field(init=False)
    _lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers = {name: number for number, name in enumerate(self.rules)}
        self._plain = _without_recursion(self.rules)
        if "root" not in self._plain:
            self._plain = _without_recursion(self.rules, lambda rule: self._is_blank(rule))

    def write(self) -> str:
        for name, rule in self.rules.items():
            if name in self._plain:
                self._lines.append(f"{self._name(name)}: {self._piece(rule)}")
            else:
                self._lines.append(f"{self._name(name)}: {self._rule(rule)}")
        return "".join(f"{line}\n" for line in (f"answer: {self._name('root')}", *self._lines))

    def _name(self, rule: str) -> str:
        number = self._numbers[rule]
        return f"PIECE_{number}" if rule in self._plain else f"rule_{number}"

    def _is_plain(self, node: _Node) -> bool:
        is_blank = "root" not in self._plain and isinstance(node, _Repeat) and self._is_blank(node)
        return not is_blank and all(name in self._plain for name in _references(node))

    def _is_blank(self, node: _Node) -> bool:
        """Whether it has nothing but blanks, and no other rules."""
        match node:
            case _Piece(is_blank=is_blank):
                return is_blank
            case _Reference():
                return False
            case _Repeat(item):
                return self._is_blank(item)
            case _Choice(sequences):
                return all(self._is_blank(item) for sequence in sequences for item in sequence)

    def _piece(self, node: _Node) -> str:
        """A node as part of a piece."""
        match node:
            case _Piece(lark):
                return lark
            case _Reference(name):
                return self._name(name)
            case _Repeat(item, suffix):
                return f"({self._piece(item)}){suffix}"
            case _Choice(sequences):
                written = [" ".join(map(self._piece, sequence)) or '""' for sequence in sequences]
                return f"({' | '.join(written)})"

    def _rule(self, node: _Node) -> str:
        """A node as part of a rule: what needs no recursion becomes a piece of its own."""
        match node:
            case _Piece() | _Reference():
                return self._piece(node)
            case _Repeat(item, suffix):
                return f"({self._rule(item)}){suffix}"
            case _Choice(sequences):
                return f"({' | '.join(map(self._joined, sequences))})"

    def _joined(self, sequence: Sequence[_Node]) -> str:
        parts: list[str] = []
        run: list[_Node] = []
        for item in (*sequence, None):
            if item is not None and self._is_plain(item):
                run.append(item)
                continue
            if run:
                name = f"PART_{len(self._lines)}_{len(parts)}"
                self._lines.append(f"{name}: {' '.join(map(self._piece, run))}")
                parts.append(name)
                run = []
            if item is not None:
                parts.append(self._rule(item))
        return " ".join(parts) or '""'


def _without_recursion(
    rules: Mapping[str, _Choice], is_left_out: Callable[[_Choice], bool] = lambda rule: False
) -> set[str]:
    """The rules that never come to themselves, nor to others that do or are left out."""
    waiting = {name: set(_references(rule)) for name, rule in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, used in waiting.items():
        for other in used:
            users[other].append(name)
    found: set[str] = set()
    ready = [name for name, used in waiting.items() if not used]
    while ready:
        name = ready.pop()
        if is_left_out(rules[name]):
            continue
        found.add(name)
        for user in users[name]:
            waiting[user].discard(name)
            if not waiting[user]:
                ready.append(user)
    return found
