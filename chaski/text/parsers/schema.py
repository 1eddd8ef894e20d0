"""Conversion of arguments that come as text to the types in the tool's schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from chaski.text.parsers.json_text import load_json

Tools: TypeAlias = Sequence[Mapping[str, Any]]
"""The tools of a request, as the API has them."""


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of the tool's function; empty if there is none."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else {}


def properties_of(name: str, tools: Tools) -> Mapping[str, Any]:
    """Return the schemas of the tool's parameters, by name."""
    for function in map(function_of, tools):
        parameters = function.get("parameters")
        if function.get("name") == name and isinstance(parameters, Mapping):
            properties = parameters.get("properties")
            return properties if isinstance(properties, Mapping) else {}
    return {}


def typed(text: str, schema: Any) -> Any:
    """Return the text as the first of the schema's types that fits, text last; `null` is None for all."""
    types = _types(schema)
    lowered = text.strip().lower()
    if lowered == "null":
        return None
    if "boolean" in types and lowered in ("true", "false"):
        return lowered == "true"
    try:
        value = load_json(text.strip())
    except (ValueError, RecursionError):
        return text
    fits = any(_fits(value, name) for name in types)
    return value if fits else text


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    choices = schema.get("anyOf")
    if isinstance(choices, list) and choices:
        return set().union(*map(_types, choices))
    names = schema.get("type")
    return {names} if isinstance(names, str) else set(names) if isinstance(names, list) else set()


def _fits(value: Any, type_name: str) -> bool:
    kinds: dict[str, tuple[type, ...]] = {
        "integer": (int,),
        "number": (int, float),
        "array": (list,),
        "object": (dict,),
    }
    return isinstance(value, kinds.get(type_name, ())) and not isinstance(value, bool)
