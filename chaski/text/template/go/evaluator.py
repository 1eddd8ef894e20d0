"""Evaluation of the syntax tree of a Go template on a value. Must run inside `metering`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import chain, repeat

from chaski.errors import TemplateError
from chaski.text.template.go import syntax
from chaski.text.template.go.functions import call
from chaski.text.template.go.show import NO_VALUE, show
from chaski.text.template.go.values import (
    Map,
    Slice,
    Struct,
    Value,
    expect_text,
    is_true,
    to_bytes,
    type_name,
)
from chaski.text.template.meter import current_meter

_DEEPEST = 50  # nested template calls


class _Flow(Enum):
    """How evaluation continues after a node."""

    ON = auto()
    BREAK = auto()
    CONTINUE = auto()


def evaluate(templates: Mapping[str, syntax.Nodes], nodes: syntax.Nodes, data: Value) -> str:
    """The text that `nodes` make of `data`; `templates` are the templates that they may call."""
    evaluator = _Evaluator(templates)
    try:
        evaluator.run(nodes, data)
    except TemplateError as error:
        raise TemplateError(f"line {evaluator.line} of the chat template: {error}") from error
    return to_bytes("".join(evaluator.pieces)).decode("utf-8", "replace")


class _Evaluator:
    def __init__(self, templates: Mapping[str, syntax.Nodes]) -> None:
        self.line = 1
        self.pieces: list[str] = []
        self._templates = templates
        self._variables: list[tuple[str, Value]] = []
        self._depth = 0
        self._length = 0
        self._meter = current_meter()

    def run(self, nodes: syntax.Nodes, data: Value) -> None:
        """Run a whole template: its `$` is its data, and it sees no other variables."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise TemplateError(f"more than {_DEEPEST} nested template calls; does a template call itself?")
        kept, self._variables = self._variables, [("$", data)]
        self._walk(nodes, data)
        self._variables = kept
        self._depth -= 1

    def _walk(self, nodes: syntax.Nodes, dot: Value) -> _Flow:
        for node in nodes:
            self._meter.tick()
            flow = self._node(node, dot)
            if flow is not _Flow.ON:
                return flow
        return _Flow.ON

    def _node(self, node: syntax.Node, dot: Value) -> _Flow:
        match node:
            case syntax.Text():
                self._write(node.text)
            case syntax.Action():
                self._action(node.pipe, dot)
            case syntax.If() | syntax.With():
                return self._branch(node, dot)
            case syntax.Range():
                return self._range(node, dot)
            case syntax.Template():
                self._call(node, dot)
            case syntax.Break():
                return _Flow.BREAK
            case syntax.Continue():
                return _Flow.CONTINUE
        return _Flow.ON

    def _write(self, text: str) -> None:
        self._length += len(text)
        self._meter.expect(self._length)
        self.pieces.append(text)

    def _action(self, pipe: syntax.Pipe, dot: Value) -> None:
        value = self._pipe(pipe, dot)
        if not pipe.variables:
            expect_text((value,), self._length)
            self._write(NO_VALUE if value is None else show(value))

    def _branch(self, node: syntax.If | syntax.With, dot: Value) -> _Flow:
        marked = len(self._variables)
        value = self._pipe(node.pipe, dot)
        if is_true(value):
            flow = self._walk(node.body, value if isinstance(node, syntax.With) else dot)
        else:
            flow = self._walk(node.otherwise, dot)
        del self._variables[marked:]
        return flow

    def _range(self, node: syntax.Range, dot: Value) -> _Flow:
        marked = len(self._variables)
        value = self._pipe(node.pipe, dot)
        inside = len(self._variables)
        flow = _Flow.ON
        ran = False
        for key, item in self._items(value, len(node.pipe.variables)):
            ran = True
            self._meter.tick()
            self._set_loop_variables(node.pipe, key, item)
            flow = self._walk(node.body, item)
            del self._variables[inside:]
            if flow is _Flow.BREAK:
                break
        result = _Flow.ON if ran else self._walk(node.otherwise, dot)
        del self._variables[marked:]
        return result

    def _items(self, value: Value, num_variables: int) -> Iterable[tuple[Value, Value]]:
        match value:
            case None:
                return ()
            case Slice():
                return enumerate(value.items)
            case Map():
                return value.items.items()
            case int() if not isinstance(value, bool) and num_variables < 2:
                return zip(repeat(None), range(value))
            case _:
                raise TemplateError(
                    f"range cannot iterate over {type_name(value)} with {num_variables} variables; "
                    "it takes lists, maps and integers, the last with one variable"
                )

    def _set_loop_variables(self, pipe: syntax.Pipe, key: Value, item: Value) -> None:
        """Set the variables of a loop: the item, or the key and the item."""
        names = pipe.variables
        values = (key, item) if len(names) == 2 else (item,)
        if pipe.assigns:
            for name, value in zip(names, values, strict=False):
                self._assign(name, value)
        elif names:
            self._variables[-len(names) :] = zip(names, values, strict=True)

    def _call(self, node: syntax.Template, dot: Value) -> None:
        self.line = node.line
        if node.name not in self._templates:
            known = ", ".join(sorted(map(repr, self._templates)))
            raise TemplateError(f"template {node.name!r} is not defined; defined templates: {known}")
        value = None if node.pipe is None else self._pipe(node.pipe, dot)
        self.run(self._templates[node.name], value)

    def _pipe(self, pipe: syntax.Pipe, dot: Value) -> Value:
        """The value of the last command. Variables are set to it."""
        self.line = pipe.line
        final: Sequence[Value] = ()
        value: Value = None
        for command in pipe.commands:
            value = self._command(command, dot, final)
            final = (value,)
        for name in pipe.variables:
            if pipe.assigns:
                self._assign(name, value)
            else:
                self._variables.append((name, value))
        return value

    def _command(self, command: syntax.Command, dot: Value, final: Sequence[Value]) -> Value:
        """A function with its arguments, the value of the pipeline before it last; or a value without any."""
        self._meter.tick()
        first, *arguments = command.operands
        if isinstance(first, syntax.Function):
            return self._function(first.name, arguments, dot, final)
        if arguments or final:
            raise TemplateError(f"{_described(first)} is no function, so it takes no arguments")
        if isinstance(first, syntax.Nil):
            raise TemplateError("nil is no value to show; compare with it by eq")
        return self._operand(first, dot)

    def _function(
        self, name: str, arguments: Sequence[syntax.Operand], dot: Value, final: Sequence[Value]
    ) -> Value:
        values = chain((self._operand(argument, dot) for argument in arguments), final)
        if name not in ("and", "or"):
            return call(name, list(values))
        if not arguments and not final:
            raise TemplateError(f"{name} needs an argument")
        return _first_decisive(values, decisive=name == "or")

    def _operand(self, operand: syntax.Operand, dot: Value) -> Value:
        self._meter.tick()
        match operand:
            case syntax.Dot():
                return dot
            case syntax.Nil():
                return None
            case syntax.Constant():
                return operand.value
            case syntax.Field():
                return _fields(dot, operand.names)
            case syntax.Variable():
                return _fields(self._value_of(operand.name), operand.fields)
            case syntax.Chain():
                return _fields(self._operand(operand.operand, dot), operand.fields)
            case syntax.Function():
                return self._function(operand.name, (), dot, ())
            case syntax.Pipe():
                return self._pipe(operand, dot)

    def _value_of(self, name: str) -> Value:
        return self._variables[self._find(name)][1]

    def _assign(self, name: str, value: Value) -> None:
        self._variables[self._find(name)] = (name, value)

    def _find(self, name: str) -> int:
        """Return the index of the innermost variable of the name."""
        for index in range(len(self._variables) - 1, -1, -1):
            if self._variables[index][0] == name:
                return index
        raise TemplateError(f"the variable {name} is not declared here; write {name} := … first")


def _first_decisive(values: Iterable[Value], decisive: bool) -> Value:
    """Return the first value whose truth is `decisive`, else the last."""
    value: Value = None
    for value in values:
        if is_true(value) is decisive:
            break
    return value


def _fields(value: Value, names: Sequence[str]) -> Value:
    """Return `value.a.b`. A missing map key is nil, and so is a field of a nil start value."""
    if value is None:
        return None
    for name in names:
        value = _field(value, name)
    return value


def _field(value: Value, name: str) -> Value:
    match value:
        case Map():
            return value.items.get(name)
        case Struct() if name in value.fields:
            return value.fields[name]
        case None:
            raise TemplateError(f"nil has no field .{name}; check it with if first")
        case _:
            raise TemplateError(f"{type_name(value)} has no field .{name}")


def _described(operand: syntax.Operand) -> str:
    match operand:
        case syntax.Field():
            return "." + ".".join(operand.names)
        case syntax.Variable():
            return ".".join((operand.name, *operand.fields))
        case syntax.Constant():
            return show(operand.value)
        case _:
            return "the operand"
