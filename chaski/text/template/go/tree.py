"""Names in a template's syntax tree, and the cut that Ollama makes for the last turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from chaski.text.template.go import syntax


def names(templates: Mapping[str, syntax.Nodes]) -> frozenset[str]:
    """Names of all fields and variables that the templates use, in lower case."""
    return frozenset(name.lower() for nodes in templates.values() for name in _names(nodes))


def text_around(nodes: syntax.Nodes, field: str) -> tuple[str, str] | None:
    """The text right before and right after the first `{{ .Field }}`."""
    for index, node in enumerate(nodes):
        if isinstance(node, syntax.Action) and field in _pipe_names(node.pipe):
            return _text_at(nodes, index - 1), _text_at(nodes, index + 1)
        if isinstance(node, syntax.If | syntax.With | syntax.Range):
            found = text_around(node.body, field) or text_around(node.otherwise, field)
            if found is not None:
                return found
    return None


def cut_after(nodes: syntax.Nodes, field: str) -> syntax.Nodes:
    """The tree up to the first use of the field in an action, in order of the source."""
    return _Cut(field).nodes(nodes)


class _Cut:
    def __init__(self, field: str) -> None:
        self._field = field
        self._done = False

    def nodes(self, nodes: syntax.Nodes) -> syntax.Nodes:
        kept = (self._node(node) for node in nodes)
        return tuple(node for node in kept if node is not None)

    def _node(self, node: syntax.Node) -> syntax.Node | None:
        if self._done:
            return None
        if isinstance(node, syntax.Action):
            pipe = self._pipe(node.pipe)
            return None if pipe is None else syntax.Action(pipe)
        if isinstance(node, syntax.If | syntax.With | syntax.Range):
            body, otherwise = self.nodes(node.body), self.nodes(node.otherwise)
            return replace(node, body=body, otherwise=otherwise)
        return node

    def _pipe(self, pipe: syntax.Pipe) -> syntax.Pipe | None:
        """Operands after the field go as well, and the action with them if that leaves a command empty."""
        commands = []
        for command in pipe.commands:
            operands = tuple(operand for operand in command.operands if self._keeps(operand))
            if not operands:
                return None
            commands.append(syntax.Command(operands))
        return replace(pipe, commands=tuple(commands))

    def _keeps(self, operand: syntax.Operand) -> bool:
        kept = not self._done
        self._done = self._done or (
            isinstance(operand, syntax.Field | syntax.Pipe) and self._field in _operand_names(operand)
        )
        return kept


def _names(nodes: syntax.Nodes) -> Iterator[str]:
    for node in nodes:
        if (
            isinstance(node, syntax.Action | syntax.If | syntax.With | syntax.Range | syntax.Template)
            and node.pipe is not None
        ):
            yield from _pipe_names(node.pipe)
        if isinstance(node, syntax.If | syntax.With | syntax.Range):
            yield from _names(node.body)
            yield from _names(node.otherwise)


def _pipe_names(pipe: syntax.Pipe) -> Iterator[str]:
    for command in pipe.commands:
        for operand in command.operands:
            yield from _operand_names(operand)


def _operand_names(operand: syntax.Operand) -> Iterator[str]:
    match operand:
        case syntax.Field():
            yield from operand.names
        case syntax.Variable():
            yield from (operand.name, *operand.fields)
        case syntax.Pipe():
            yield from _pipe_names(operand)


def _text_at(nodes: syntax.Nodes, index: int) -> str:
    node = nodes[index] if 0 <= index < len(nodes) else None
    return node.text if isinstance(node, syntax.Text) else ""
