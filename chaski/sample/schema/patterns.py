"""The patterns of JSON Schema, as patterns that `llguidance` can follow.

`llguidance` knows neither look-ahead nor anchors in the middle. A look-ahead after the beginning is one more
pattern for the same text, so `^(?!\\.)a` becomes two; the others go through an automaton.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from chaski.sample.schema import ecma
from chaski.sample.schema.automaton import Automaton
from chaski.sample.schema.characters import complement
from chaski.sample.schema.rust import spelled, spelled_class

__all__ = ["all_but", "conjuncts", "matches", "one_pattern"]

_MOST_OPTIONS = 64
_ASSERTIONS = (ecma.Start, ecma.End, ecma.Boundary, ecma.Look)


@lru_cache(256)
def conjuncts(pattern: str) -> tuple[str, ...]:
    """Return patterns that a text matches if and only if it matches `pattern`. Raises PatternError."""
    parts = _parts(ecma.parse(pattern))
    if parts[:1] != [ecma.Start()]:
        return (_whole(_search(pattern)),)
    looks = [part for part in parts if isinstance(part, ecma.Look)]
    if not looks or any(isinstance(part, ecma.Look) for part in parts[1 + len(looks) :]):
        return (_whole(_search(pattern)),)
    rest = ecma.Concat((*(part for part in parts if not isinstance(part, ecma.Look)), ecma.ALL))
    found = [_whole(rest)]
    for look in looks:
        begins = ecma.Concat((ecma.Start(), look.part, ecma.ALL))
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
    looks: list[ecma.Node] = [
        ecma.Look(ecma.Concat((_literal(name), ecma.End())), is_negative=True) for name in names
    ]
    looks += (ecma.Look(_search(pattern), is_negative=True) for pattern in refused)
    looks += (
        ecma.Look(ecma.Concat((_search(pattern), ecma.End())), is_negative=False) for pattern in demanded
    )
    return f"^(?:{Automaton(ecma.Concat((*looks, ecma.ALL))).pattern()})$"


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


def _literal(text: str) -> ecma.Node:
    return ecma.Concat(tuple(ecma.Chars(((ord(letter), ord(letter)),)) for letter in text))


def _search(pattern: str) -> ecma.Node:
    """The whole of a text that contains a match."""
    return ecma.Concat((ecma.ALL, ecma.parse(pattern), ecma.ALL))


def _parts(node: ecma.Node) -> list[ecma.Node]:
    """The nodes of a row, with the rows in it."""
    return [each for part in node.parts for each in _parts(part)] if isinstance(node, ecma.Concat) else [node]


def _whole(node: ecma.Node) -> str:
    """A pattern for the texts that a node matches as a whole."""
    bare = _bare(node)
    return f"^(?:{Automaton(node).pattern() if bare is None else spelled(bare)})$"


def _bare(node: ecma.Node) -> ecma.Node | None:
    """The node without the anchors at the ends of its options; None if it has other anchors."""
    options = _options(_parts(node), _MOST_OPTIONS)
    if options is None:
        return None
    found = []
    for parts in options:
        if ecma.Start() in parts:
            begin = len(parts) - 1 - parts[::-1].index(ecma.Start())
            if any(part != ecma.ALL for part in parts[:begin] if part != ecma.Start()):
                return None
            parts = parts[begin + 1 :]
        if ecma.End() in parts:
            end = parts.index(ecma.End())
            if any(part != ecma.ALL for part in parts[end:] if part != ecma.End()):
                return None
            parts = parts[:end]
        if any(map(_asserts, parts)):
            return None
        found.append(ecma.Concat(tuple(parts)))
    return found[0] if len(found) == 1 else ecma.Choice(tuple(found))


def _options(parts: list[ecma.Node], most: int) -> list[list[ecma.Node]] | None:
    """The rows that a row with choices of anchored options means; None for more than `most`."""
    rows, found = [parts], []
    while rows:
        row = rows.pop(0)
        at = next(
            (at for at, part in enumerate(row) if isinstance(part, ecma.Choice) and _asserts(part)), None
        )
        if at is None:
            found.append(row)
        else:
            choice = row[at]
            assert isinstance(choice, ecma.Choice)
            rows = [[*row[:at], *_parts(each), *row[at + 1 :]] for each in choice.options] + rows
        if len(rows) + len(found) > most:
            return None
    return found


def _asserts(node: ecma.Node) -> bool:
    match node:
        case ecma.Concat(parts) | ecma.Choice(parts):
            return any(map(_asserts, parts))
        case ecma.Repeat(part):
            return _asserts(part)
    return isinstance(node, _ASSERTIONS)
