"""Names in a template's syntax tree, and the cut that the reference makes for the last turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from chaski.text.template.go.nodes import (
    ActionNode,
    CommandNode,
    FieldNode,
    IfNode,
    Node,
    Nodes,
    OperandNode,
    PipeNode,
    RangeNode,
    TemplateNode,
    TextNode,
    VariableNode,
    WithNode,
)


def names(templates: Mapping[str, Nodes]) -> frozenset[str]:
    """Names of all fields and variables that the templates use, in lower case."""
    return frozenset(name.lower() for nodes in templates.values() for name in _names(nodes))


def text_around(nodes: Nodes, field: str) -> tuple[str, str] | None:
    """The text right before and right after the first `{{ .Field }}`."""
    for index, node in enumerate(nodes):
        if isinstance(node, ActionNode) and field in _pipe_names(node.pipe):
            return _text_at(nodes, index - 1), _text_at(nodes, index + 1)
        if isinstance(node, IfNode | WithNode | RangeNode):
            found = text_around(node.body, field) or text_around(node.otherwise, field)
            if found is not None:
                return found
    return None


def cut_after(nodes: Nodes, field: str) -> Nodes:
    """The tree up to the first use of the field in an action, in order of the source."""
    return _Cut(field).nodes(nodes)


class _Cut:
    def __init__(self, field: str) -> None:
        self._field = field
        self._done = False

    def nodes(self, nodes: Nodes) -> Nodes:
        kept = (self._node(node) for node in nodes)
        return tuple(node for node in kept if node is not None)

    def _node(self, node: Node) -> Node | None:
        if self._done:
            return None
        if isinstance(node, ActionNode):
            pipe = self._pipe(node.pipe)
            return None if pipe is None else ActionNode(pipe)
        if isinstance(node, IfNode | WithNode | RangeNode):
            body, otherwise = self.nodes(node.body), self.nodes(node.otherwise)
            return replace(node, body=body, otherwise=otherwise)
        return node

    def _pipe(self, pipe: PipeNode) -> PipeNode | None:
        """Operands after the field go as well, and the action with them if that leaves a command empty."""
        commands = []
        for command in pipe.commands:
            operands = tuple(operand for operand in command.operands if self._keeps(operand))
            if not operands:
                return None
            commands.append(CommandNode(operands))
        return replace(pipe, commands=tuple(commands))

    def _keeps(self, operand: OperandNode) -> bool:
        kept = not self._done
        self._done = self._done or (
            isinstance(operand, FieldNode | PipeNode) and self._field in _operand_names(operand)
        )
        return kept


def _names(nodes: Nodes) -> Iterator[str]:
    for node in nodes:
        if (
            isinstance(node, ActionNode | IfNode | WithNode | RangeNode | TemplateNode)
            and node.pipe is not None
        ):
            yield from _pipe_names(node.pipe)
        if isinstance(node, IfNode | WithNode | RangeNode):
            yield from _names(node.body)
            yield from _names(node.otherwise)


def _pipe_names(pipe: PipeNode) -> Iterator[str]:
    for command in pipe.commands:
        for operand in command.operands:
            yield from _operand_names(operand)


def _operand_names(operand: OperandNode) -> Iterator[str]:
    match operand:
        case FieldNode():
            yield from operand.names
        case VariableNode():
            yield from (operand.name, *operand.fields)
        case PipeNode():
            yield from _pipe_names(operand)


def _text_at(nodes: Nodes, index: int) -> str:
    node = nodes[index] if 0 <= index < len(nodes) else None
    return node.text if isinstance(node, TextNode) else ""
