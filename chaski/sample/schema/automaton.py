"""Deterministic automata of patterns with look-ahead and anchors, and their complements as patterns.

A state is a set of ways to continue. Each way is a stack of nodes that are still to match, the kind of the
character before it, and the conditions that the rest of the text must meet: states of other automata.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct

from chaski.sample.schema import ecma
from chaski.sample.schema.characters import ANY, WORD, Ranges, contains, union
from chaski.sample.schema.rust import spelled_class

__all__ = ["Automaton"]

_MOST_STATES = 400
_MOST_NODES = 3000
_MOST_WAYS = 30_000
_LONGEST = 1 << 15
_BEGIN, _OTHER, _WORD = range(3)

_Stack: TypeAlias = tuple[ecma.Node, "_Stack"] | None


class _Next(Struct, frozen=True):
    """The condition that the next character, if there is one, is part of a word, or is not."""

    is_word: bool


class _Ends(Struct, frozen=True):
    """The condition that the text ends here."""


class _Ahead(Struct, frozen=True):
    """The condition that an automaton accepts the rest, or does not."""

    automaton: int
    state: int
    is_negative: bool


_Condition: TypeAlias = _Next | _Ends | _Ahead


class _Way(Struct, frozen=True):
    stack: _Stack
    before: int
    conditions: frozenset[_Condition]


class Automaton:
    """The texts that a node matches as a whole. Raises PatternError where it grows too large."""

    def __init__(self, node: ecma.Node) -> None:
        if _size(node) > _MOST_NODES:
            raise ecma.PatternError("it is too long for look-ahead")
        self._ways = 0
        self._parts: list[tuple[tuple[ecma.Node, int], _Lazy]] = []
        self._classes = _classes(node)
        self._letters = [ranges[0][0] for ranges in self._classes]
        self._lazy = _Lazy(self, node, _BEGIN)

    def accepts(self, text: str) -> bool:
        """Return whether the whole text is matched."""
        state = 0
        for letter in text:
            found = (i for i, ranges in enumerate(self._classes) if contains(ranges, ord(letter)))
            index = next(found, None)
            if index is None:
                return False
            state = self._lazy.step(state, index)
        return self._lazy.accepts(state)

    def pattern(self, is_complement: bool = False) -> str:
        """Return a pattern without assertions for the texts, or for all other texts."""
        edges, ends = self._table()
        return _eliminated(edges, {i for i in range(len(edges)) if (i in ends) != is_complement})

    def part(self, node: ecma.Node, before: int) -> int:
        """The number of the automaton of a look-ahead."""
        for number, (key, _) in enumerate(self._parts):
            if key == (node, before):
                return number
        self._parts.append(((node, before), _Lazy(self, ecma.Concat((node, ecma.ALL)), before)))
        return len(self._parts) - 1

    def lazy(self, number: int) -> _Lazy:
        """The automaton of a look-ahead."""
        return self._parts[number][1]

    def count(self, ways: int) -> None:
        """Count the work of a state."""
        self._ways += ways
        if self._ways > _MOST_WAYS:
            raise ecma.PatternError("its look-ahead is too complex")

    def letter(self, index: int) -> int:
        """A character of a class, for all of it."""
        return self._letters[index]

    def _table(self) -> tuple[list[dict[int, Ranges]], set[int]]:
        """Edges by target with their characters, of each state, and the states that accept; minimal."""
        rows: list[list[int]] = []
        while len(rows) < self._lazy.count:
            rows.append([self._lazy.step(len(rows), index) for index in range(len(self._classes))])
        accepting = [self._lazy.accepts(state) for state in range(len(rows))]
        block = [int(value) for value in accepting]
        while True:
            keys = [(block[i], *(block[target] for target in row)) for i, row in enumerate(rows)]
            names = {key: number for number, key in enumerate(dict.fromkeys(keys))}
            found = [names[key] for key in keys]
            if len(names) == len(set(block)):
                break
            block = found
        edges: list[dict[int, Ranges]] = [{} for _ in names]
        for state, row in enumerate(rows):
            targets: dict[int, list[tuple[int, int]]] = {}
            for index, target in enumerate(row):
                targets.setdefault(found[target], []).extend(self._classes[index])
            edges[found[state]] = {target: union(ranges) for target, ranges in targets.items()}
        return edges, {found[i] for i, value in enumerate(accepting) if value}


_EVERY = frozenset(
    _Way((ecma.Chars(ANY), (ecma.ALL, None)), before, frozenset()) for before in (_BEGIN, _OTHER, _WORD)
)


def _least(state: frozenset[_Way]) -> frozenset[_Way]:
    """The ways without those that another one makes superfluous."""
    found: dict[tuple[_Stack, int], list[_Way]] = {}
    for way in state:
        found.setdefault((way.stack, way.before), []).append(way)
    return frozenset(
        way
        for ways in found.values()
        for way in ways
        if not any(other.conditions < way.conditions for other in ways)
    )


class _Lazy:
    """The states of one node, numbered as they are met; the first is 0."""

    def __init__(self, owner: Automaton, node: ecma.Node, before: int) -> None:
        self._owner = owner
        begin = _Way((node, None), before, frozenset())
        self._states: list[frozenset[_Way]] = []
        self._numbers: dict[frozenset[_Way], int] = {}
        self._steps: dict[tuple[int, int], int] = {}
        self._number(frozenset(self._closure([begin])))

    @property
    def count(self) -> int:
        """The number of states so far."""
        return len(self._states)

    def step(self, state: int, index: int) -> int:
        """The state after a character of a class."""
        if (state, index) not in self._steps:
            code = self._owner.letter(index)
            moved = (way for each in self._states[state] if (way := self._moved(each, code, index)))
            self._steps[state, index] = self._number(frozenset(self._closure(list(moved))))
        return self._steps[state, index]

    def accepts(self, state: int) -> bool:
        """Return whether the text may end in a state."""
        return self._states[state] == _EVERY or any(
            way.stack is None and all(map(self._met, way.conditions)) for way in self._states[state]
        )

    def known(self, state: int) -> bool | None:
        """True if every text is accepted from a state on, False if none is, None if it depends."""
        if not self._states[state]:
            return False
        return True if self._states[state] == _EVERY else None

    def _met(self, condition: _Condition) -> bool:
        match condition:
            case _Next(is_word):
                return not is_word
            case _Ahead(number, state, is_negative):
                return self._owner.lazy(number).accepts(state) != is_negative
        return True

    def _number(self, state: frozenset[_Way]) -> int:
        state = _EVERY if not state.isdisjoint(_EVERY) else _least(state)
        if state not in self._numbers:
            if len(self._states) >= _MOST_STATES:
                raise ecma.PatternError("its look-ahead is too complex")
            self._numbers[state] = len(self._states)
            self._states.append(state)
        return self._numbers[state]

    def _moved(self, way: _Way, code: int, index: int) -> _Way | None:
        """A way after a character, before what its stack begins with is taken apart."""
        if way.stack is None or not isinstance(way.stack[0], ecma.Chars):
            return None
        if not contains(way.stack[0].ranges, code):
            return None
        conditions: set[_Condition] = set()
        is_word = contains(WORD, code)
        for condition in way.conditions:
            match condition:
                case _Ends():
                    return None
                case _Next(wanted) if wanted != is_word:
                    return None
                case _Ahead(number, state, is_negative):
                    after = self._owner.lazy(number).step(state, index)
                    known = self._owner.lazy(number).known(after)
                    if known is is_negative:
                        return None
                    if known is None:
                        conditions.add(_Ahead(number, after, is_negative))
        return _Way(way.stack[1], _WORD if is_word else _OTHER, frozenset(conditions))

    def _closure(self, waiting: list[_Way]) -> Iterator[_Way]:
        """Yield the ways that begin with a character or are at the end."""
        seen: set[_Way] = set()
        while waiting:
            way = waiting.pop()
            if way in seen:
                continue
            seen.add(way)
            self._owner.count(1)
            if way.stack is None or isinstance(way.stack[0], ecma.Chars):
                yield way
            else:
                waiting += self._opened(way, *way.stack)

    def _opened(self, way: _Way, node: ecma.Node, rest: _Stack) -> Iterator[_Way]:
        def go(stack: _Stack, *conditions: _Condition) -> _Way:
            return _Way(stack, way.before, way.conditions.union(conditions))

        match node:
            case ecma.Concat(parts):
                for part in reversed(parts):
                    rest = (part, rest)
                yield go(rest)
            case ecma.Choice(options):
                yield from (go((option, rest)) for option in options)
            case ecma.Repeat(part, least, most):
                if least == 0:
                    yield go(rest)
                if most != 0:
                    again = ecma.Repeat(part, max(least - 1, 0), None if most is None else most - 1)
                    yield go((part, (again, rest)))
            case ecma.Start() if way.before == _BEGIN:
                yield go(rest)
            case ecma.End():
                yield go(rest, _Ends())
            case ecma.Boundary(is_negative):
                yield go(rest, _Next((way.before == _WORD) == is_negative))
            case ecma.Look(part, is_negative):
                yield go(rest, _Ahead(self._owner.part(part, way.before), 0, is_negative))


def _sets(node: ecma.Node) -> Iterator[Ranges]:
    match node:
        case ecma.Chars(ranges):
            yield ranges
        case ecma.Property():
            raise ecma.PatternError("Unicode properties (\\p) next to look-ahead cannot be followed")
        case ecma.Boundary():
            yield WORD
        case ecma.Concat(parts) | ecma.Choice(parts):
            for part in parts:
                yield from _sets(part)
        case ecma.Repeat(part) | ecma.Look(part):
            yield from _sets(part)


def _size(node: ecma.Node) -> int:
    """The number of nodes of a tree."""
    match node:
        case ecma.Concat(parts) | ecma.Choice(parts):
            return 1 + sum(map(_size, parts))
        case ecma.Repeat(part) | ecma.Look(part):
            return 1 + _size(part)
    return 1


def _classes(node: ecma.Node) -> list[Ranges]:
    """Sets of all characters that the node never distinguishes."""
    sets = list(dict.fromkeys([*_sets(node), WORD]))
    bounds = sorted(
        {bound for ranges in [*sets, ANY] for first, last in ranges for bound in (first, last + 1)}
    )
    members: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for first, end in pairwise(bounds):
        if contains(ANY, first):
            members.setdefault(tuple(contains(each, first) for each in sets), []).append((first, end - 1))
    return [union(ranges) for ranges in members.values()]


def _eliminated(edges: list[dict[int, Ranges]], ends: set[int]) -> str:
    """A pattern for the paths from state 0 to an end, by taking out one state after the other."""
    begin, end = len(edges), len(edges) + 1
    table = {
        (i, target): spelled_class(ranges)
        for i, found in enumerate(edges)
        for target, ranges in found.items()
    }
    table |= {(begin, 0): ""} | {(i, end): "" for i in ends}
    left = set(range(len(edges)))

    def cost(state: int) -> int:
        inward = [len(text) for (i, j), text in table.items() if j == state != i]
        outward = [len(text) for (i, j), text in table.items() if i == state != j]
        return sum(inward) * len(outward) + sum(outward) * len(inward)

    while left:
        state = min(left, key=cost)
        left.remove(state)
        loop = table.pop((state, state), None)
        inward = [(i, text) for (i, j), text in table.items() if j == state]
        outward = [(j, text) for (i, j), text in table.items() if i == state]
        table = {key: text for key, text in table.items() if state not in key}
        around = "" if loop is None else f"(?:{loop})*"
        for i, before in inward:
            for j, after in outward:
                known = table.get((i, j))
                path = f"{before}{around}{after}"
                table[i, j] = path if known is None else f"(?:{known}|{path})"
        if sum(map(len, table.values())) > _LONGEST:
            raise ecma.PatternError("its look-ahead is too complex")
    return table.get((begin, end), spelled_class(()))
