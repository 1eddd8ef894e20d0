"""The Jinja environment of chat templates: sandboxed, immutable and metered.

The settings are those that templates are written for (Hugging Face transformers). Jinja's own sandbox keeps
templates away from Python's internals. In addition, every operation that can enlarge a value or repeat itself
reports to the `Meter`: operators, calls, filters, tests, loops and literals.
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

# Methods that templates do not need and that make large values from small ones.
_UNSAFE_METHODS = {
    dict: {"fromkeys"},
    str: {"encode", "expandtabs", "format_map", "maketrans", "translate"},
    int: {"from_bytes", "to_bytes"},
}


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates. Compilation and rendering must both run inside `metering`."""

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
        """Apply Jinja's rule, but refuse methods that can make huge values, and allow `append` and `pop`."""
        if attr in ("append", "pop") and isinstance(obj, list):
            return True
        unsafe = any(isinstance(obj, kind) and attr in names for kind, names in _UNSAFE_METHODS.items())
        return not unsafe and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an intercepted operator; check before and measure after."""
        check_operator(operator, left, right)
        meter = current_meter()
        meter.tick()
        return meter.measured(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Make a call of a template; count it before and measure its result."""
        if function is _counted:
            return _counted(*args)
        meter = current_meter()
        meter.tick()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, list) and function.__name__ == "append":
            check_append(owner, *args)
        return meter.measured(super().call(context, function, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up a key and count it; filters do this for each part of an attribute and each item."""
        current_meter().tick()
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Replace methods of strings with metered ones. Jinja calls this for every attribute."""
        text = getattr(value, "__self__", None)
        if not isinstance(value, BuiltinMethodType) or not isinstance(text, str):
            return None
        if value.__name__ == "format":
            return lambda *args, **kwargs: _Formatter(self).vformat(text, args, kwargs)
        method = STRING_METHODS.get(value.__name__)
        return None if method is None else partial(method, text)

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raise the error of a rendering unchanged.

        Jinja would build another traceback of template lines. It refers to the template's variables and to
        its own error, so everything that the template made would live until the next garbage collection.
        """
        if source is None:
            raise
        super().handle_exception(source)

    def tick(self, characters: int) -> None:
        """Count a turn of a loop and its literal text. Compiled templates call this."""
        current_meter().tick(characters)

    def same(self, value: Any) -> Any:
        """Return the value. Compiled templates call this around literals and slices to have them measured."""
        return value

    @property
    def counted(self) -> Callable[[Any], Any]:
        """Return the function that compiled templates call around compared values and loop conditions."""
        return _counted

    def concat(self, pieces: Iterable[str]) -> str:
        """Join the text of a macro, a block or a `set` block. Compiled templates call this."""
        return joined("", pieces)

    def concatenate(self, *values: Any) -> str:
        """Apply the operator `~`. Compiled templates call this."""
        return joined("", values)


class GenerationBlock(Extension):
    """`{% generation %}`, which marks the assistant's text for training; here it outputs its contents."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Formatter(SandboxedFormatter):
    """Formats one text, and counts its size as it grows."""

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
    """Return the value itself after a check of the time."""
    current_meter().tick()
    return value


@pass_environment
def _printed(environment: Environment, value: Any) -> str:
    """Return the text that `{{ value }}` outputs."""
    return current_meter().measured(str(value))


class _Instrument(NodeTransformer):
    """Inserts calls of the environment's `tick`, `same` and `concatenate` into a syntax tree."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Return the node that replaces this one; visit its children first."""
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
