"""Conversion of text arguments to the types in the tool's schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from chaski.text.parsers.json_text import load_json
from chaski.text.parsers.python_text import load_literal

Tools: TypeAlias = Sequence[Mapping[str, Any]]
"""The tools of a request in the form of the API."""

_ALL = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_OBJECT_HINTS = ("properties", "additionalProperties", "patternProperties", "required")
_ARRAY_HINTS = ("items", "prefixItems")
# A schema with more references and choices accepts any value.
_MAX_PARTS = 1000
_FAULTS = (ValueError, RecursionError, MemoryError)


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of the tool's function, or an empty one."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else {}


def names_of(tools: Tools) -> frozenset[str]:
    """Return the names of the tools."""
    return frozenset(str(function_of(tool).get("name")) for tool in tools)


class Schema(Struct, frozen=True):
    """A part of a JSON schema. `root` is the document that its local references point into."""

    node: Any = None
    root: Any = None

    def kinds(self) -> frozenset[str]:
        """Return the JSON types that a value may have; all of them if the schema names none."""
        return self._kinds({})

    def _kinds(self, known: dict[int, frozenset[str] | None]) -> frozenset[str]:
        """Return the kinds. `known` maps parts seen so far to their kinds, enclosing parts to None."""
        node = self.node
        if node is False:
            return frozenset()
        if not isinstance(node, Mapping) or len(known) > _MAX_PARTS:
            return _ALL
        if id(node) in known:
            found = known[id(node)]
            return _ALL if found is None else found
        known[id(node)] = None
        found = _own_kinds(node)
        if (target := self._target()) is not None:
            found &= target._kinds(known)
        for part in self._parts("allOf"):
            found &= part._kinds(known)
        for key in ("anyOf", "oneOf"):
            # A choice that leads back to this part adds nothing.
            choices = [part for part in self._parts(key) if known.get(id(part.node), found) is not None]
            if choices:
                found &= frozenset().union(*(choice._kinds(known) for choice in choices))
        known[id(node)] = found | {"null"} if node.get("nullable") is True else found
        return known[id(node)] or frozenset()

    def member(self, name: str) -> Schema:
        """Return the schema of a property; an empty one if there is no description."""
        parts = list(self._applicable())
        for key in ("properties", "additionalProperties"):
            for part in parts:
                found = part.node.get(key)
                if key == "properties":
                    found = found.get(name) if isinstance(found, Mapping) else None
                if isinstance(found, Mapping):
                    return Schema(found, self.root)
        return Schema(None, self.root)

    def refuses(self, name: str) -> bool:
        """Return whether the schema excludes a property of this name."""
        parts = [part.node for part in self._applicable()]
        closed = any(node.get("additionalProperties") is False for node in parts)
        return closed and not any(
            isinstance(node.get("properties"), Mapping) and name in node["properties"] for node in parts
        )

    def items(self) -> Schema:
        """Return the schema of the items of an array; an empty one if there is no description."""
        found = (part.node.get("items") for part in self._applicable())
        return Schema(next((node for node in found if isinstance(node, Mapping)), None), self.root)

    @property
    def requires_any(self) -> bool:
        """Return whether an object of the schema must have properties."""
        return any(part.node.get("required") for part in self._applicable())

    def choices(self) -> Iterator[Any]:
        """Yield the values that `enum` and `const` list."""
        for part in self._applicable():
            if isinstance(part.node.get("enum"), list):
                yield from part.node["enum"]
            if "const" in part.node:
                yield part.node["const"]

    def _applicable(self) -> Iterator[Schema]:
        """Yield this schema and all schemas that it refers to or chooses from, each once."""
        waiting, seen = [self], set[int]()
        while waiting and len(seen) <= _MAX_PARTS:
            part = waiting.pop(0)
            if not isinstance(part.node, Mapping) or id(part.node) in seen:
                continue
            seen.add(id(part.node))
            yield part
            target = part._target()
            more = [*part._parts("allOf"), *part._parts("anyOf"), *part._parts("oneOf")]
            waiting = [*([] if target is None else [target]), *more, *waiting]

    def _parts(self, key: str) -> Iterator[Schema]:
        parts = self.node.get(key)
        for part in parts if isinstance(parts, list) else ():
            yield Schema(part, self.root)

    def _target(self) -> Schema | None:
        """Return the target of a local `$ref`; None if there is no such reference."""
        reference = self.node.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found = self.root
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(key)
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                return None
        return None if found is self.node else Schema(found, self.root)


def parameters_of(name: str, tools: Tools) -> Schema:
    """Return the schema of the tool's parameters; an empty one if it has none."""
    for function in map(function_of, tools):
        if function.get("name") == name and isinstance(function.get("parameters"), Mapping):
            return Schema(function["parameters"], function["parameters"])
    return Schema()


def typed(text: str, schema: Schema) -> Any:
    """Return the text as a value of the schema.

    Values of `enum` and `const` come first, then the types other than text that the schema allows, in the
    spelling of JSON or Python. A schema without types allows all, so `5` is a number. Text that fits no type
    stays text, and so does all text if the schema allows only text.
    """
    kinds = schema.kinds()
    if kinds == {"string"}:
        return text
    choices = list(schema.choices())
    if text in choices:
        return text
    stripped = text.strip()
    value = _read(stripped, kinds)
    return text if value == stripped else value


def _own_kinds(node: Mapping[str, Any]) -> frozenset[str]:
    names = node.get("type")
    if isinstance(names, str):
        names = [names]
    if isinstance(names, list) and names:
        found = frozenset(name for name in names if isinstance(name, str)) & _ALL
        return (found | {"integer"} if "number" in found else found) or _ALL
    values = node["enum"] if isinstance(node.get("enum"), list) else []
    values = [*values, node["const"]] if "const" in node else values
    if values:
        return frozenset(_kind(value) for value in values)
    if any(key in node for key in _OBJECT_HINTS):
        return frozenset({"object"})
    return frozenset({"array"}) if any(key in node for key in _ARRAY_HINTS) else _ALL


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _read(text: str, kinds: frozenset[str]) -> Any:
    """Return the value that the text spells if it is of one of the kinds, else the text."""
    lowered = text.lower()
    # Null is a value of every schema that does not accept text.
    if (lowered == "null" or text == "None") and ("null" in kinds or "string" not in kinds):
        return None
    if "boolean" in kinds and lowered in ("true", "false"):
        return lowered == "true"
    for load in (load_json, load_literal):
        try:
            value = load(text)
        except _FAULTS:
            continue
        if isinstance(value, float) and value.is_integer() and "number" not in kinds and "integer" in kinds:
            return int(value)
        if isinstance(value, str):
            # A value in quotes although text is not allowed: the quoted part counts.
            return text if "string" in kinds else _read(value, kinds) if len(value) < len(text) else text
        if _kind(value) in kinds:
            return value
    return text
