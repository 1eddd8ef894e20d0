"""Filters, tests and functions that chat templates may use, each reporting to the meter.

They are Jinja's, changed as in transformers (`tojson` writes plain JSON without HTML escapes;
`strftime_now` and `raise_exception` exist), and without those that chat templates do not need: random
numbers, HTML, word wrapping.
"""

from __future__ import annotations

import functools
import html
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Literal, NoReturn, cast

from jinja2.environment import Environment
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_indent, do_round, do_sum, make_attrgetter
from jinja2.sandbox import safe_range
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Cycler, Joiner, Namespace, pass_environment

from chaski.errors import TemplateError
from chaski.text.template.growth import check_format, check_operator, joined, replaced, stripped
from chaski.text.template.meter import current_meter

_LONGEST_DATE_FORMAT = 200
_LARGEST_WIDTH = 100


class _Namespace(Namespace):
    """Jinja's namespace, the only thing that a template can change; it prints without its contents."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateError(f"the chat template sets {name!r} on a namespace; underscores are private")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _dict(pairs: Any = (), /, **items: Any) -> dict[Any, Any]:
    """`dict(pairs, **items)`, one key at a time, since many keys with the same hash take long."""
    return dict(_ticking(pairs.items() if isinstance(pairs, dict) else pairs), **items)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(f"the chat template does not accept this conversation: {message}")


def _strftime_now(format: str) -> str:
    if len(format) > _LONGEST_DATE_FORMAT:
        raise TemplateError("the chat template uses a date format that is too long")
    check_format(format)
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    for separator in separators or ():
        _check_width(separator)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )
    if indent is None:
        return encoder.encode(value)
    # The size of indentation grows with the depth, so it is counted line by line.
    _check_width(indent)
    return "".join(map(current_meter().measured, encoder.iterencode(value)))


def _listed(values: object) -> list[Any]:
    """Return the list that a filter such as `map` yields; other values cannot be written as JSON."""
    if not isinstance(values, Iterator):
        raise TemplateError(f"the chat template writes a value of type {type(values).__name__} as JSON")
    found: list[Any] = []
    for value in values:
        found.append(value)
        current_meter().expect_elements(len(found))
    return current_meter().measured(found)


@pass_environment
def _join(environment: Environment, values: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    return joined(
        str(d), values if attribute is None else map(make_attrgetter(environment, attribute), values)
    )


def _replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    return replaced(str(text), str(old), str(new), count)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _check_width(width)
    lines = str(text).count("\n") + 1
    current_meter().expect(len(str(text)) + lines * (len(width) if isinstance(width, str) else width))
    return do_indent(str(text), width, first, blank)


def _format(text: Any, *args: Any, **kwargs: Any) -> str:
    arguments = kwargs or args
    check_operator("%", str(text), arguments)
    return str(text) % arguments


def _round(value: float, precision: int = 0, method: Literal["common", "ceil", "floor"] = "common") -> float:
    _check_width(precision)
    return do_round(value, precision, method)


@pass_environment
def _sum(
    environment: Environment, values: Iterable[Any], attribute: str | None = None, start: float = 0
) -> Any:
    if not isinstance(start, int | float):
        raise TemplateError("the chat template sums values that are not numbers")
    return do_sum(environment, values, attribute, start)


def _escape(value: Any) -> str:
    return html.escape(str(value))


def _check_width(width: int | str) -> None:
    if (len(width) if isinstance(width, str) else width) > _LARGEST_WIDTH:
        raise TemplateError(f"the chat template uses a width or precision above {_LARGEST_WIDTH}")


def _trim(value: Any, chars: str | None = None) -> str:
    return stripped("strip", str(value), chars)


def _ticking(values: Iterable[Any]) -> Iterator[Any]:
    meter = current_meter()
    for value in values:
        meter.tick()
        yield value


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its result measured, or with each item counted if the result is lazy.

    Jinja's marks on the function (`pass_environment`) are kept.
    """

    @functools.wraps(function)
    def measure(*args: Any, **kwargs: Any) -> Any:
        meter = current_meter()
        meter.tick()
        result = function(*args, **kwargs)
        return _ticking(result) if isinstance(result, Iterator) else meter.measured(result)

    return measure


# fmt: off
_JINJA_FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby",
    "int", "items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
    "reverse", "select", "selectattr", "sort", "string", "title", "unique", "upper",
)
# fmt: on
_OWN_FILTERS: dict[str, Callable[..., Any]] = {
    "e": _escape,
    "escape": _escape,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "safe": str,
    "sum": _sum,
    "tojson": _tojson,
    "trim": _trim,
}

_ALL_FILTERS: dict[str, Callable[..., Any]] = {
    **{name: JINJA_FILTERS[name] for name in _JINJA_FILTERS},
    **_OWN_FILTERS,
}

FILTERS = {name: _metered(function) for name, function in _ALL_FILTERS.items()}
_ALL_TESTS = cast("dict[str, Callable[..., Any]]", JINJA_TESTS)

TESTS = {name: _metered(function) for name, function in _ALL_TESTS.items()}
GLOBALS: dict[str, Any] = {
    "cycler": Cycler,
    "dict": _dict,
    "joiner": Joiner,
    "namespace": _Namespace,
    "raise_exception": _raise_exception,
    "range": safe_range,
    "strftime_now": _strftime_now,
}
