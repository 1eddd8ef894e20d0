"""Compares a reply with its required shape; `data/replies.json` explains shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SHAPES: dict[str, Any] = json.loads((Path(__file__).parent / "data/replies.json").read_text())

_SECONDS = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"


def _matches(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_json(value: Any) -> bool:
    return isinstance(value, str) and isinstance(json.loads(value), dict)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "any": lambda value: True,
    "text": lambda value: isinstance(value, str),
    "flag": lambda value: isinstance(value, bool),
    "int": _is_int,
    "positive": lambda value: _is_int(value) and value > 0,
    "number": lambda value: type(value) in (int, float),
    "null": lambda value: value is None,
    "json": _is_json,
    "[int]": lambda value: isinstance(value, list) and all(map(_is_int, value)),
    "[text]": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "utc": _matches(_SECONDS + r"\.\d{9}Z"),
    "local": _matches(_SECONDS + r"(\.\d+)?[+-]\d\d:\d\d"),
    "hex": _matches("[0-9a-f]{64}|"),
    "call": _matches("call_[a-z0-9]{8}"),
    "msg": _matches("msg_[0-9a-f]{24}"),
    "version": _matches(r"\d+\.\d+\.\d+"),
}


def faults(shape: Any, value: Any, where: str = "") -> Iterator[str]:
    """Return the missing and extra fields, and those with a wrong type."""
    if isinstance(shape, str):
        yield from _faults_of_type(shape, value, where)
    elif isinstance(shape, list):
        if not isinstance(value, list) or (value and not shape):
            yield f"{where} is {value!r:.60}, not such a list"
            return
        for index, item in enumerate(value):
            yield from faults(shape[0], item, f"{where}[{index}]")
    elif not isinstance(value, dict):
        yield f"{where} is {value!r:.60}, not an object"
    elif "*" in shape:
        for key, item in value.items():
            yield from faults(shape["*"], item, f"{where}.{key}")
    else:
        yield from _faults_of_object(shape, value, where)


def _faults_of_type(shape: str, value: Any, where: str) -> Iterator[str]:
    """Return the faults of a value by its named type: a type, a constant, a shape, or one of several."""
    choices = shape.split("|")
    if len(choices) > 1:
        if all(any(faults(choice, value)) for choice in choices):
            yield f"{where} is {value!r:.100}, none of {shape}"
    elif shape.startswith("="):
        if str(value).lower() != shape[1:].lower():
            yield f"{where} is {value!r:.60}, not {shape[1:]!r}"
    elif shape in SHAPES:
        yield from faults(SHAPES[shape], value, where)
    elif not _TYPES[shape](value):
        yield f"{where} is {value!r:.60}, not {shape}"


def _faults_of_object(shape: dict[str, Any], value: dict[str, Any], where: str) -> Iterator[str]:
    known = dict(shape)
    if more := known.pop("...", None):
        known |= SHAPES[more]
    fields = {key.strip("+?"): (each, key.endswith("?")) for key, each in known.items()}
    for name, (each, is_optional) in fields.items():
        if name in value:
            yield from faults(each, value[name], f"{where}.{name}")
        elif not is_optional:
            yield f"{where}.{name} is missing"
    for name in value.keys() - fields.keys():
        yield f"{where}.{name} is too much"
