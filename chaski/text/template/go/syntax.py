"""The syntax tree of a Go template. Trees never change; `tree.py` makes new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Nodes: TypeAlias = "tuple[Node, ...]"
Node: TypeAlias = "Text | Action | If | With | Range | Template | Break | Continue"
Operand: TypeAlias = "Dot | Nil | Constant | Field | Variable | Chain | Function | Pipe"


@dataclass(frozen=True, slots=True)
class Text:
    """Text between actions."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """`{{ pipe }}`"""

    pipe: Pipe


@dataclass(frozen=True, slots=True)
class If:
    """`{{ if pipe }} body {{ else }} otherwise {{ end }}`"""

    pipe: Pipe
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True, slots=True)
class With:
    """Like `if`, and the value is the dot of the body."""

    pipe: Pipe
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True, slots=True)
class Range:
    """The body for each item, which is its dot; `otherwise` where there is none."""

    pipe: Pipe
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True, slots=True)
class Template:
    """`{{ template "name" pipe }}`"""

    name: str
    pipe: Pipe | None
    line: int


@dataclass(frozen=True, slots=True)
class Break:
    """`{{ break }}`"""


@dataclass(frozen=True, slots=True)
class Continue:
    """`{{ continue }}`"""


@dataclass(frozen=True, slots=True)
class Pipe:
    """Commands whose result is the last argument of the next; `variables` get the value of the last."""

    line: int
    variables: tuple[str, ...]
    assigns: bool
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A value, or a function with its arguments."""

    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Dot:
    """`.`"""


@dataclass(frozen=True, slots=True)
class Nil:
    """`nil`"""


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: bool | int | float | complex | str


@dataclass(frozen=True, slots=True)
class Field:
    """`.A.B`"""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name.A.B`, the name with its dollar."""

    name: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """`(pipe).A.B` or `function.A`"""

    operand: Operand
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function by its name."""

    name: str
