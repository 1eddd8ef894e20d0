"""The negation of a schema, if another schema expresses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["negated"]

_TYPES = ("null", "boolean", "number", "string", "array", "object")
_ANNOTATIONS = {"title", "description", "$comment", "default", "examples"}


def negated(schema: Any, beside: Mapping[str, Any]) -> Any:
    """Return the schema of all values that follow `beside` and not `schema`.

    The result is used next to `beside`. Raises ValueError if no such schema is known.
    """
    if isinstance(schema, bool):
        return not schema
    keys = set(schema) - _ANNOTATIONS
    if not keys:
        return False
    if keys == {"not"}:
        return schema["not"]
    if keys == {"anyOf"}:
        return {"allOf": [negated(part, beside) for part in schema["anyOf"]]}
    if keys == {"type"}:
        return _other_types(schema["type"])
    if keys in ({"const"}, {"enum"}):
        return _other_values([schema["const"]] if keys == {"const"} else schema["enum"], beside)
    if keys == {"pattern"} and beside.get("type") == "string":
        return {"pattern": f"^(?![^]*(?:{schema['pattern']}))"}
    if keys <= {"properties", "required", "type"} and schema.get("type", "object") == "object":
        return _other_properties(schema, beside)
    raise ValueError(f"the opposite of {', '.join(sorted(keys)):.60} cannot be followed; say what is allowed")


def _other_types(names: Any) -> Any:
    refused = set(names if isinstance(names, list) else [names])
    if "integer" in refused and "number" not in refused:
        raise ValueError("the opposite of integer cannot be followed; say what is allowed")
    return {"type": [name for name in _TYPES if name not in refused]}


def _other_values(values: list[Any], beside: Mapping[str, Any]) -> Any:
    known = [beside["const"]] if "const" in beside else beside.get("enum")
    if beside.get("type") == "boolean":
        known = [True, False]
    if known is not None:
        left = [each for each in known if not any(_same(each, value) for value in values)]
        return {"enum": left} if left else False
    if beside.get("type") == "string":
        texts = (value for value in values if isinstance(value, str))
        return {"pattern": f"^(?!(?:{'|'.join(map(_literal, texts))})$)"}
    if values == [None]:
        return _other_types("null")
    raise ValueError(
        "the opposite of these values cannot be followed without the type string or an enum beside it"
    )


def _literal(text: str) -> str:
    return "".join(f"\\u{{{ord(letter):X}}}" for letter in text)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _other_properties(schema: Mapping[str, Any], beside: Mapping[str, Any]) -> Any:
    """Objects that lack a key, or have another value for one."""
    if beside.get("type") != "object" and "properties" not in beside:
        raise ValueError("the opposite of an object cannot be followed without the type object beside it")
    required = schema.get("required", [])
    needed = beside.get("required", [])
    is_object = {"type": "object"}
    ways: list[Any] = [is_object | {"properties": {name: False}} for name in required if name not in needed]
    for name, part in schema.get("properties", {}).items():
        other = negated(part, beside.get("properties", {}).get(name, {}))
        ways.append(is_object | {"properties": {name: other}, "required": [name]})
    return {"anyOf": ways} if ways else False
