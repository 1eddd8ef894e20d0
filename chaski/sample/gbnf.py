"""GBNF, llama.cpp's language of grammars, into the rules of `llguidance`'s dialect of Lark.

`llguidance` reads an answer in pieces, each by a regular expression, and takes the longest piece that there
is. So everything that needs no recursion becomes one piece, as large as it gets: that is exact within a
piece, and quick. Where two pieces stand next to each other, the first one takes as much as it can; an answer
that would have to leave some of it to the second is not written. Blanks, for which that would happen often,
are read one by one instead. The written text always follows the grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chaski.sample.gbnf_parser import Choice, GbnfNode, GbnfParser, Reference, Repeat, Terminal

__all__ = ["is_gbnf", "lark_rules"]


def is_gbnf(text: str) -> bool:
    """Return whether a grammar is in GBNF rather than in Lark, which has no `::=`."""
    return "::=" in text


def lark_rules(text: str) -> str:
    """Return a grammar's rules in Lark; `root` becomes `answer`. Raises ValueError with the error's place."""
    rules = GbnfParser(text).rules()
    if "root" not in rules:
        raise ValueError("it has no rule root")
    for name, rule in rules.items():
        for other in _references(rule):
            if other not in rules:
                raise ValueError(f"rule {name:.80} names {other:.80}, which there is not")
    return _Writer(rules).write()


def _references(node: GbnfNode) -> Iterator[str]:
    """The rules that a node names."""
    match node:
        case Reference(name):
            yield name
        case Repeat(item):
            yield from _references(item)
        case Choice(sequences):
            for sequence in sequences:
                for item in sequence:
                    yield from _references(item)


@dataclass(slots=True)
class _Writer:
    """Rules in Lark. Those in capitals are pieces, see above."""

    rules: Mapping[str, Choice]
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

    def _is_plain(self, node: GbnfNode) -> bool:
        is_blank = "root" not in self._plain and isinstance(node, Repeat) and self._is_blank(node)
        return not is_blank and all(name in self._plain for name in _references(node))

    def _is_blank(self, node: GbnfNode) -> bool:
        """Return whether a node has nothing but blanks. References never count as blank."""
        match node:
            case Terminal(is_blank=is_blank):
                return is_blank
            case Reference():
                return False
            case Repeat(item):
                return self._is_blank(item)
            case Choice(sequences):
                return all(self._is_blank(item) for sequence in sequences for item in sequence)

    def _piece(self, node: GbnfNode) -> str:
        """A node as part of a piece."""
        match node:
            case Terminal(lark):
                return lark
            case Reference(name):
                return self._name(name)
            case Repeat(item, suffix):
                return f"({self._piece(item)}){suffix}"
            case Choice(sequences):
                written = [" ".join(map(self._piece, sequence)) or '""' for sequence in sequences]
                return f"({' | '.join(written)})"

    def _rule(self, node: GbnfNode) -> str:
        """A node as part of a rule: a part without recursion becomes a separate piece."""
        match node:
            case Terminal() | Reference():
                return self._piece(node)
            case Repeat(item, suffix):
                return f"({self._rule(item)}){suffix}"
            case Choice(sequences):
                return f"({' | '.join(map(self._joined, sequences))})"

    def _joined(self, sequence: Sequence[GbnfNode]) -> str:
        parts: list[str] = []
        run: list[GbnfNode] = []
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
    rules: Mapping[str, Choice], is_left_out: Callable[[Choice], bool] = lambda rule: False
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
