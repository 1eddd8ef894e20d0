"""The Jinja environment of chat templates: sandboxed, immutable and metered.

The settings are those that templates are written for (Hugging Face transformers). On top of Jinja's own
sandbox, which keeps templates away from Python's internals, every operation that can grow a value or
repeat itself reports to the `Meter`: operators, calls, filters, tests, loops and literals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import BuiltinMethodType
from typing import Any, NoReturn, cast

from jinja2 import Environment, nodes
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import pass_environment
from jinja2.visitor import NodeTransformer

from chaski.text.template.functions import FILTERS, GLOBALS, TESTS
from chaski.text.template.growth import STRING_METHODS, check_append, check_format, check_operator, joined
from chaski.text.template.meter import current_meter

# Methods that no template needs and that make large values from small ones.
_UNSAFE_METHODS = {
    dict: {"fromkeys"},
    str: {"encode", "expandtabs", "format_map", "maketrans", "translate"},
    int: {"from_bytes", "to_bytes"},
}


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates whose rendering must run inside `metering`, and so must compiling."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, LoopControls],
            finalize=_printed,
        )
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)
        self.globals = dict(GLOBALS)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _Instrument().visit(template)
        template.set_environment(self)
        return template

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's rule, without methods that could make huge values, and with `append` and `pop` of lists."""
        if attr in ("append", "pop") and isinstance(obj, list):
            return True
        unsafe = any(isinstance(obj, kind) and attr in names for kind, names in _UNSAFE_METHODS.items())
        return not unsafe and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An intercepted operator, checked before and measured after."""
        check_operator(operator, left, right)
        meter = current_meter()
        meter.tick()
        return meter.measured(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Any call in a template, counted before and measured after."""
        if function is _counted:
            return _counted(*args)
        meter = current_meter()
        meter.tick()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, list) and function.__name__ == "append":
            check_append(owner, *args)
        return meter.measured(super().call(context, function, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Any lookup by a key, counted; filters look up each part of an attribute by it, for each item."""
        current_meter().tick()
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja asks this for every attribute: methods of strings are exchanged for metered ones."""
        text = getattr(value, "__self__", None)
        if not isinstance(value, BuiltinMethodType) or not isinstance(text, str):
            return None
        if value.__name__ == "format":
            return lambda *args, **kwargs: _Formatter(self).vformat(text, args, kwargs)
        method = STRING_METHODS.get(value.__name__)
        return None if method is None else partial(method, text)

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raise the error of a rendering unchanged.

        Jinja would make another traceback, of lines in the template, which refers to the template's variables
        and to its own error: all that the template made would stay until the garbage collector comes.
        """
        if source is None:
            raise
        super().handle_exception(source)

    def tick(self, characters: int) -> None:
        """Called by compiled templates in each turn of a loop, with the length of its literal text."""
        current_meter().tick(characters)

    def same(self, value: Any) -> Any:
        """Called by compiled templates around literals and slices, because `call` measures its result."""
        return value

    @property
    def counted(self) -> Callable[[Any], Any]:
        """Called by compiled templates around compared values, and around the condition of a loop."""
        return _counted

    def concat(self, pieces: Iterable[str]) -> str:
        """Called by compiled templates for the text of a macro, a block or a `set` block."""
        return joined("", pieces)

    def concatenate(self, *values: Any) -> str:
        """Called by compiled templates for the operator `~`."""
        return joined("", values)


class GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is only its contents."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Formatter(SandboxedFormatter):
    """Formats one text, and counts its size while it grows."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._length = 0

    def format_field(self, value: Any, format_spec: str) -> str:
        check_format(format_spec)
        meter = current_meter()
        text = meter.measured(str(super().format_field(value, format_spec)))
        self._length += len(text)
        meter.expect(self._length)
        return text


def _counted(value: Any) -> Any:
    """Return the value itself, after a look at the clock."""
    current_meter().tick()
    return value


@pass_environment
def _printed(environment: Environment, value: Any) -> str:
    """Return the text that `{{ value }}` puts out."""
    return current_meter().measured(str(value))


class _Instrument(NodeTransformer):
    """Puts calls of the environment's `tick`, `same` and `concatenate` into a syntax tree."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """The node that takes this node's place; its children first."""
        self.generic_visit(node)
        rewrite = _REWRITES.get(type(node))
        return node if rewrite is None else rewrite(node)


def _ticking(node: nodes.For) -> nodes.Node:
    literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    node.body.insert(0, nodes.ExprStmt(_call("tick", [nodes.Const(literal)])))
    node.test = None if node.test is None else _call("counted", [cast("nodes.Expr", node.test)])
    return node


def _compared(node: nodes.Operand) -> nodes.Node:
    node.expr = _call("counted", [node.expr])
    return node


def _concatenated(node: nodes.Concat) -> nodes.Node:
    return _call("concatenate", node.nodes)


def _measured(node: nodes.Expr) -> nodes.Node:
    return _call("same", [node])


def _measured_tuple(node: nodes.Tuple) -> nodes.Node:
    return _measured(node) if node.ctx == "load" else node


def _measured_slice(node: nodes.Getitem) -> nodes.Node:
    return _measured(node) if isinstance(node.arg, nodes.Slice) else node


def _call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


_REWRITES: dict[type[nodes.Node], Callable[[Any], nodes.Node]] = {
    nodes.Concat: _concatenated,
    nodes.Dict: _measured,
    nodes.For: _ticking,
    nodes.Getitem: _measured_slice,
    nodes.List: _measured,
    nodes.Operand: _compared,
    nodes.Tuple: _measured_tuple,
}
