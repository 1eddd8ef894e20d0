"""The functions of Go templates and those that Ollama adds: `json`, dates, TypeScript types.

An error in a call is a `TemplateError`; the evaluator adds the line. The evaluator implements `and` and
`or`, because they do not evaluate all arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import NoReturn

from chaski.errors import TemplateError
from chaski.text.template.go import encoding
from chaski.text.template.go.printf import printf
from chaski.text.template.go.show import NO_VALUE, show_all
from chaski.text.template.go.values import (
    Byte,
    Map,
    Slice,
    Struct,
    Value,
    expect_text,
    from_bytes,
    is_nil,
    is_true,
    to_bytes,
    type_name,
)
from chaski.text.template.meter import current_meter

_REFERENCE = 8  # bytes that a list uses for an item of any type


@dataclass(frozen=True, slots=True)
class Builtin:
    """A function, the number of its arguments, and whether it makes a text of everything in them."""

    call: Callable[..., Value]
    least: int = 0
    most: int | None = None
    makes_text: bool = False


def typescript_type(property: Value) -> str:
    """Return the TypeScript type of a tool's parameter, `any` if it cannot be determined."""
    fields: Mapping[str, Value] = property.fields if isinstance(property, Struct) else {}
    choices, types = fields.get("AnyOf"), fields.get("Type")
    if isinstance(choices, Slice) and choices.items:
        return " | ".join(typescript_type(choice) for choice in choices.items)
    if isinstance(types, Slice) and types.items:
        return " | ".join(_TYPESCRIPT.get(str(name), "any") for name in types.items)
    return "any"


_TYPESCRIPT = {
    "array": "any[]",
    "boolean": "boolean",
    "integer": "number",
    "null": "null",
    "number": "number",
    "object": "Record<string, any>",
    "string": "string",
}


def _length(value: Value) -> Value:
    match value:
        case str():
            return len(to_bytes(value))
        case Slice() | Map():
            return len(value.items)
        case _:
            raise TemplateError(f"len needs text, a list or a map, not {type_name(value)}")


def _index(value: Value, *keys: Value) -> Value:
    if value is None:
        raise TemplateError("index cannot look into nil")
    for key in keys:
        value = _item(value, key)
    return value


def _item(value: Value, key: Value) -> Value:
    match value:
        case Map():
            if not isinstance(key, str):
                raise TemplateError(f"index needs text as the key of a map, not {type_name(key)}")
            return value.items.get(key)
        case str():
            data = to_bytes(value)
            return Byte(data[_position(key, len(data) - 1)])
        case Slice():
            return value.items[_position(key, len(value.items) - 1)]
        case _:
            raise TemplateError(f"index cannot look into {type_name(value)}")


def _slice(value: Value, *bounds: Value) -> Value:
    if not isinstance(value, str | Slice):
        raise TemplateError(f"slice needs text or a list, not {type_name(value)}")
    if isinstance(value, str) and len(bounds) == 3:
        raise TemplateError("slice takes at most two bounds of text")
    items = to_bytes(value) if isinstance(value, str) else value.items
    current_meter().tick(len(items) if isinstance(items, bytes) else _REFERENCE * len(items))
    positions = [_position(bound, len(items)) for bound in bounds]
    start, end, capacity = (*positions, *(0, len(items), len(items))[len(positions) :])
    if not start <= end <= capacity:
        raise TemplateError(f"slice bounds {start}:{end} are out of order")
    part = items[start:end]
    return from_bytes(part) if isinstance(part, bytes) else Slice(part)


def _position(value: Value, most: int) -> int:
    position = value.value if isinstance(value, Byte) else value
    if not isinstance(position, int) or isinstance(position, bool):
        raise TemplateError(f"a position in a list must be an integer, not {type_name(value)}")
    if not 0 <= position <= most:
        raise TemplateError(f"position {position} is out of range; the last is {most}")
    return position


def _equal(first: Value, *others: Value) -> Value:
    return any(_same(first, other) for other in others)


def _same(left: Value, right: Value) -> bool:
    current_meter().tick()
    if left is None or right is None:
        return is_nil(left) and is_nil(right)
    if isinstance(left, Slice | Map | Struct) or isinstance(right, Slice | Map | Struct):
        if type(left) is type(right) and (is_nil(left) or is_nil(right)):
            return is_nil(left) and is_nil(right)
        raise TemplateError(f"{type_name(left)} and {type_name(right)} cannot be compared")
    left, right = _comparable(left, right)
    return left == right


def _not_equal(left: Value, right: Value) -> Value:
    return not _same(left, right)


def _less(left: Value, right: Value) -> bool:
    current_meter().tick()
    left, right = _comparable(left, right)
    if isinstance(left, str) and isinstance(right, str):
        return to_bytes(left) < to_bytes(right)
    if isinstance(left, int | float) and isinstance(right, int | float) and not isinstance(left, bool):
        return left < right
    raise TemplateError(f"{type_name(left)} has no order")


def _less_or_equal(left: Value, right: Value) -> bool:
    return _less(left, right) or _same(left, right)


def _comparable(left: Value, right: Value) -> tuple[Value, Value]:
    """Return both values as one type: bytes count as integers, everything else must match exactly."""
    left = left.value if isinstance(left, Byte) else left
    right = right.value if isinstance(right, Byte) else right
    if type(left) is not type(right):
        raise TemplateError(
            f"{type_name(left)} and {type_name(right)} cannot be compared; convert one with print"
        )
    return left, right


def _printf(format: Value, *values: Value) -> Value:
    if not isinstance(format, str):
        raise TemplateError(f"the format of printf must be text, not {type_name(format)}")
    return printf(format, values)


def _escaper(escape: Callable[[str], str]) -> Callable[..., Value]:
    """Return a function that escapes values as text; nil is escaped as an action would write it."""
    return lambda *values: escape(show_all([NO_VALUE if value is None else value for value in values]))


def _call(function: Value, *arguments: Value) -> NoReturn:
    raise TemplateError(
        f"call needs a function, but {type_name(function)} is not one; chat templates receive no functions"
    )


def _date(days_ago: int) -> Callable[..., Value]:
    """Return a function that makes a date as 2006-01-02. It ignores a format argument, as Ollama does."""

    def make(*formats: Value) -> Value:
        for format in formats:
            if not isinstance(format, str):
                raise TemplateError(f"a date format must be text, not {type_name(format)}")
        return (date.today() - timedelta(days=days_ago)).isoformat()

    return make


def _json(value: Value) -> Value:
    return encoding.to_json(value)


def call(name: str, arguments: list[Value]) -> Value:
    """Return the function's result. Count argument conversions before the call, and its size after."""
    current_meter().tick()
    builtin = FUNCTIONS[name]
    if len(arguments) < builtin.least or (builtin.most is not None and len(arguments) > builtin.most):
        raise TemplateError(f"{name} takes {_range(builtin)} arguments, not {len(arguments)}")
    if builtin.makes_text:
        expect_text(arguments)
    result = builtin.call(*arguments)
    return current_meter().measured(result) if isinstance(result, str) else result


def _range(builtin: Builtin) -> str:
    if builtin.most is None:
        return f"at least {builtin.least}"
    return str(builtin.least) if builtin.least == builtin.most else f"{builtin.least} to {builtin.most}"


def _lazy(*arguments: Value) -> NoReturn:
    raise AssertionError("the evaluator calls and, or itself")


FUNCTIONS: Mapping[str, Builtin] = {
    "and": Builtin(_lazy, 1),
    "call": Builtin(_call, 1),
    "currentDate": Builtin(_date(0)),
    "eq": Builtin(_equal, 2),
    "ge": Builtin(lambda left, right: not _less(left, right), 2, 2),
    "gt": Builtin(lambda left, right: not _less_or_equal(left, right), 2, 2),
    "html": Builtin(_escaper(encoding.html), makes_text=True),
    "index": Builtin(_index, 1),
    "js": Builtin(_escaper(encoding.javascript), makes_text=True),
    "json": Builtin(_json, 1, 1, makes_text=True),
    "le": Builtin(_less_or_equal, 2, 2),
    "len": Builtin(_length, 1, 1),
    "lt": Builtin(_less, 2, 2),
    "ne": Builtin(_not_equal, 2, 2),
    "not": Builtin(lambda value: not is_true(value), 1, 1),
    "or": Builtin(_lazy, 1),
    "print": Builtin(lambda *values: show_all(values), makes_text=True),
    "printf": Builtin(_printf, 1),
    "println": Builtin(lambda *values: show_all(values, newline=True), makes_text=True),
    "slice": Builtin(_slice, 1, 4),
    "toTypeScriptType": Builtin(typescript_type, 1, 1, makes_text=True),
    "urlquery": Builtin(_escaper(encoding.url_query), makes_text=True),
    "yesterdayDate": Builtin(_date(1)),
}
