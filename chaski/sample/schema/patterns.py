"""The patterns of JSON Schema, as patterns that `llguidance` can follow.

`llguidance` knows neither look-ahead nor anchors in the middle. A look-ahead after the beginning is one more
pattern for the same text, so `^(?!\\.)a` becomes two; the others go through an automaton.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from chaski.sample.schema.automaton import Automaton
from chaski.sample.schema.characters import complement
from chaski.sample.schema.ecma import (
    ALL,
    Boundary,
    Chars,
    Choice,
    Concat,
    End,
    Look,
    Node,
    Repeat,
    Start,
    parse,
)
from chaski.sample.schema.rust import spelled, spelled_class

__all__ = ["all_but", "conjuncts", "matches", "one_pattern"]

_MOST_OPTIONS = 64
_ASSERTIONS = (Start, End, Boundary, Look)


@lru_cache(256)
def conjuncts(pattern: str) -> tuple[str, ...]:
    """Return patterns that a text matches if and only if it matches `pattern`. Raises PatternError."""
    parts = _parts(parse(pattern))
    if parts[:1] != [Start()]:
        return (_whole(_search(pattern)),)
    looks = [part for part in parts if isinstance(part, Look)]
    if not looks or any(isinstance(part, Look) for part in parts[1 + len(looks) :]):
        return (_whole(_search(pattern)),)
    rest = Concat((*(part for part in parts if not isinstance(part, Look)), ALL))
    found = [_whole(rest)]
    for look in looks:
        begins = Concat((Start(), look.part, ALL))
        found.append(
            f"^(?:{Automaton(begins).pattern(is_complement=True)})$" if look.is_negative else _whole(begins)
        )
    return tuple(found)


@lru_cache(256)
def one_pattern(pattern: str) -> str:
    """Return a single pattern without assertions. Raises PatternError."""
    found = conjuncts(pattern)
    return found[0] if len(found) == 1 else f"^(?:{Automaton(_search(pattern)).pattern()})$"


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a text. Raises PatternError."""
    return Automaton(_search(pattern)).accepts(text)


def all_but(names: Iterable[str], patterns: Iterable[str] = (), wanted: Iterable[str] = ()) -> str:
    """Return a pattern for all texts but `names` and those that match one of `patterns`.

    They must match all of `wanted`. Raises PatternError.
    """
    refused, demanded = list(patterns), list(wanted)
    if not refused and not demanded:
        return f"^(?:{_others(sorted(set(names)), 0)})$"
    looks: list[Node] = [Look(Concat((_literal(name), End())), is_negative=True) for name in names]
    looks += (Look(_search(pattern), is_negative=True) for pattern in refused)
    looks += (Look(Concat((_search(pattern), End())), is_negative=False) for pattern in demanded)
    return f"^(?:{Automaton(Concat((*looks, ALL))).pattern()})$"


def _others(names: list[str], at: int) -> str:
    """A pattern for all texts but names that have their first `at` characters in common, from there on."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if len(name) > at:
            groups.setdefault(name[at], []).append(name)
    other = spelled_class(complement(tuple((ord(letter), ord(letter)) for letter in groups)))
    options = [f"{other}(?s:.*)"]
    options += (f"{_escaped(letter)}(?:{_others(group, at + 1)})" for letter, group in groups.items())
    return "|".join(options if any(len(name) == at for name in names) else ["", *options])


def _escaped(letter: str) -> str:
    return rf"\x{{{ord(letter):X}}}"


def _literal(text: str) -> Node:
    return Concat(tuple(Chars(((ord(letter), ord(letter)),)) for letter in text))


def _search(pattern: str) -> Node:
    """The whole of a text that contains a match."""
    return Concat((ALL, parse(pattern), ALL))


def _parts(node: Node) -> list[Node]:
    """The nodes of a row, with the rows in it."""
    return [each for part in node.parts for each in _parts(part)] if isinstance(node, Concat) else [node]


def _whole(node: Node) -> str:
    """A pattern for the texts that a node matches as a whole."""
    bare = _bare(node)
    return f"^(?:{Automaton(node).pattern() if bare is None else spelled(bare)})$"


def _bare(node: Node) -> Node | None:
    """The node without anchors where they stand at the ends of its options; None where others are."""
    options = _options(_parts(node), _MOST_OPTIONS)
    if options is None:
        return None
    found = []
    for parts in options:
        if Start() in parts:
            begin = len(parts) - 1 - parts[::-1].index(Start())
            if any(part != ALL for part in parts[:begin] if part != Start()):
                return None
            parts = parts[begin + 1 :]
        if End() in parts:
            end = parts.index(End())
            if any(part != ALL for part in parts[end:] if part != End()):
                return None
            parts = parts[:end]
        if any(map(_asserts, parts)):
            return None
        found.append(Concat(tuple(parts)))
    return found[0] if len(found) == 1 else Choice(tuple(found))


def _options(parts: list[Node], most: int) -> list[list[Node]] | None:
    """The rows that a row with choices of anchored options stands for; None for more than `most`."""
    rows, found = [parts], []
    while rows:
        row = rows.pop(0)
        at = next((at for at, part in enumerate(row) if isinstance(part, Choice) and _asserts(part)), None)
        if at is None:
            found.append(row)
        else:
            choice = row[at]
            assert isinstance(choice, Choice)
            rows = [[*row[:at], *_parts(each), *row[at + 1 :]] for each in choice.options] + rows
        if len(rows) + len(found) > most:
            return None
    return found


def _asserts(node: Node) -> bool:
    match node:
        case Concat(parts) | Choice(parts):
            return any(map(_asserts, parts))
        case Repeat(part):
            return _asserts(part)
    return isinstance(node, _ASSERTIONS)
