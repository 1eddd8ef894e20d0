"""The syntax tree of a Go template. Trees are never changed; `tree.py` makes new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Nodes: TypeAlias = "tuple[Node, ...]"
Node: TypeAlias = (
    "TextNode | ActionNode | IfNode | WithNode | RangeNode | TemplateNode | BreakNode | ContinueNode"
)
OperandNode: TypeAlias = (
    "DotNode | NilNode | ConstantNode | FieldNode | VariableNode | ChainNode | FunctionNode | PipeNode"
)


@dataclass(frozen=True, slots=True)
class TextNode:
    """Text between actions."""

    text: str


@dataclass(frozen=True, slots=True)
class ActionNode:
    """`{{ pipe }}`"""

    pipe: PipeNode


@dataclass(frozen=True, slots=True)
class IfNode:
    """`{{ if pipe }} body {{ else }} otherwise {{ end }}`"""

    pipe: PipeNode
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True, slots=True)
class WithNode:
    """Like `if`, and the value is the dot of the body."""

    pipe: PipeNode
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True, slots=True)
class RangeNode:
    """The body for each item, which is its dot; `otherwise` where there is none."""

    pipe: PipeNode
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True, slots=True)
class TemplateNode:
    """`{{ template "name" pipe }}`"""

    name: str
    pipe: PipeNode | None
    line: int


@dataclass(frozen=True, slots=True)
class BreakNode:
    """`{{ break }}`"""


@dataclass(frozen=True, slots=True)
class ContinueNode:
    """`{{ continue }}`"""


@dataclass(frozen=True, slots=True)
class PipeNode:
    """Commands whose result is the last argument of the next; `variables` get the value of the last."""

    line: int
    variables: tuple[str, ...]
    assigns: bool
    commands: tuple[CommandNode, ...]


@dataclass(frozen=True, slots=True)
class CommandNode:
    """A value, or a function with its arguments."""

    operands: tuple[OperandNode, ...]


@dataclass(frozen=True, slots=True)
class DotNode:
    """`.`"""


@dataclass(frozen=True, slots=True)
class NilNode:
    """`nil`"""


@dataclass(frozen=True, slots=True)
class ConstantNode:
    """A literal."""

    value: bool | int | float | complex | str


@dataclass(frozen=True, slots=True)
class FieldNode:
    """`.A.B`"""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VariableNode:
    """`$name.A.B`, the name with its dollar."""

    name: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChainNode:
    """`(pipe).A.B` or `function.A`"""

    operand: OperandNode
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FunctionNode:
    """A function by its name."""

    name: str
