"""JSON schemas as grammars want them: objects have no keys but those that are declared.

A schema leaves an object open unless it says `additionalProperties: false`, and a model that may invent keys
does so until its limit. So an object that declares properties is closed, unless the schema says otherwise
(`additionalProperties`, `unevaluatedProperties`); one that declares none stays free. What `allOf` and `$ref`
bring together is closed as a whole: closing each part would leave nothing that fits all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from msgspec import Struct, field

from chaski.errors import OptionError

__all__ = ["closed", "target_of"]

Schema: TypeAlias = Mapping[str, Any]

_DEFINITIONS = ("$defs", "definitions")
_SCHEMAS = ("additionalProperties", "additionalItems", "items", "contains", "unevaluatedItems")
_LISTS = ("prefixItems", "items")
_MAPPINGS = ("properties", "patternProperties")
_CHOICES = ("anyOf", "oneOf")
_SAYS_OTHERWISE = ("additionalProperties", "unevaluatedProperties")
_MAX_ADDED = 1 << 20
"""Characters of keys that are repeated at most, to close objects."""


def closed(schema: Schema) -> dict[str, Any]:
    """The schema with its objects closed, and all it refers to in its own `$defs`.

    Raises OptionError for references to nothing, and for schemas that would become too large; RecursionError
    for those that are too deep.
    """
    closing = _Closing(schema)
    result = dict(closing.close(schema, schema))
    if closing.definitions:
        result["$defs"] = closing.definitions
    return result


def target_of(ref: str, root: Schema) -> Any:
    """The schema that a path leads to; a reference of another kind as it is. Raises OptionError."""
    return _target(ref, root)[0] if _is_path(ref) else {}


class _Declared(Struct):
    """The keys that a schema knows, those of its parts included. `is_object`: whether it declares any."""

    names: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    is_object: bool = False

    def add(self, other: _Declared) -> None:
        self.names |= other.names
        self.patterns |= other.patterns
        self.is_object = self.is_object or other.is_object


class _Closing:
    """Goes through one schema. `root` is what the references of a part begin at: the part with an `$id`."""

    def __init__(self, schema: Schema) -> None:
        self.definitions: dict[str, Any] = {}
        self._names: dict[tuple[int, str, bool], str] = {}
        self._num_added = 0
        # References by other names than paths are left as they are.
        if any(not _is_path(ref) for ref in _references(schema)):
            for key in _DEFINITIONS:
                self.definitions |= _mapping(schema.get(key))

    def close(self, schema: Any, root: Schema, known: _Declared | None = None) -> Any:
        """A schema alone, or a choice of a schema that also declares the keys `known`."""
        if not isinstance(schema, Mapping):
            return schema
        root = schema if _has_id(schema) else root
        if known is None and _is_only_reference(schema):
            kept = {key: value for key, value in schema.items() if key not in (*_DEFINITIONS, "$id")}
            return kept | {"$ref": self._reference(schema["$ref"], root, is_open=False)}
        says_otherwise = any(key in schema for key in _SAYS_OTHERWISE)
        fixed = self._declared(schema, root, with_choices=False)
        is_object = fixed.is_object
        fixed.add(known or _Declared())

        def choice(part: Any) -> Any:
            if says_otherwise or not self._declared(part, root).is_object:
                return self.open(part, root)
            return self.close(part, root, fixed if fixed.is_object else None)

        result = self._parts(schema, root, choice)
        rest = self.close(result.pop("unevaluatedProperties", False), root)
        if "additionalProperties" in schema or not (is_object or "unevaluatedProperties" in schema):
            return result
        fixed.add(self._declared(schema, root))
        return self._bounded(result, fixed, rest)

    def open(self, schema: Any, root: Schema) -> Any:
        """A part of a schema that is closed as a whole."""
        if not isinstance(schema, Mapping):
            return schema
        root = schema if _has_id(schema) else root
        return self._parts(schema, root, lambda part: self.open(part, root))

    def _parts(self, schema: Schema, root: Schema, choice: Callable[[Any], Any]) -> dict[str, Any]:
        """Return a copy of a schema in which all inner objects are closed."""
        result: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _DEFINITIONS or key == "$id":
                continue
            if key in _MAPPINGS and isinstance(value, Mapping):
                value = {name: self.close(part, root) for name, part in value.items()}
            elif key in _LISTS and isinstance(value, list):
                value = [self.close(part, root) for part in value]
            elif key in _SCHEMAS:
                value = self.close(value, root)
            elif key in _CHOICES and isinstance(value, list):
                value = [choice(part) for part in value]
            elif key == "allOf" and isinstance(value, list):
                value = [self.open(part, root) for part in value]
            elif key == "$ref":
                value = self._reference(value, root, is_open=True)
            result[key] = value
        return result

    def _bounded(self, schema: dict[str, Any], declared: _Declared, rest: Any) -> dict[str, Any]:
        """The schema with all keys declared, and `rest` for all others."""
        properties = dict(_mapping(schema.get("properties")))
        patterns = dict(_mapping(schema.get("patternProperties")))
        required = schema.get("required")
        wanted = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        missing = dict.fromkeys([*declared.names, *wanted])
        self._num_added += sum(len(name) + 8 for name in (*missing, *declared.patterns))
        if self._num_added > _MAX_ADDED:
            raise OptionError("it brings too many keys together by allOf, anyOf, oneOf and $ref")
        schema["properties"] = properties | {name: True for name in missing if name not in properties}
        if patterns or declared.patterns:
            schema["patternProperties"] = dict.fromkeys(declared.patterns, True) | patterns
        schema["additionalProperties"] = rest
        return schema

    def _declared(
        self, schema: Any, root: Schema, with_choices: bool = True, seen: set[int] | None = None
    ) -> _Declared:
        """The keys that a schema knows, with those of its choices or without."""
        found, seen = _Declared(), set() if seen is None else seen
        if not isinstance(schema, Mapping) or id(schema) in seen:
            return found
        seen.add(id(schema))
        root = schema if _has_id(schema) else root
        for key, names in (("properties", found.names), ("patternProperties", found.patterns)):
            if isinstance(schema.get(key), Mapping):
                names |= dict.fromkeys(schema[key])
                found.is_object = True
        for key in ("allOf", *(_CHOICES if with_choices else ())):
            for part in schema[key] if isinstance(schema.get(key), list) else ():
                found.add(self._declared(part, root, True, seen))
        if _is_path(schema.get("$ref")):
            target, within = _target(schema["$ref"], root)
            found.add(self._declared(target, within, True, seen))
        return found

    def _reference(self, ref: Any, root: Schema, is_open: bool) -> Any:
        """A reference to a definition of the result, which is made when it is first met."""
        if not _is_path(ref):
            return ref
        key = (id(root), ref, is_open)
        if key not in self._names:
            target, within = _target(ref, root)
            _check_ends(ref, target, within)
            self._names[key] = name = self._unused(ref[2:].rpartition("/")[2] or "root")
            self.definitions[name] = True
            self.definitions[name] = self.open(target, within) if is_open else self.close(target, within)
        return "#/$defs/" + self._names[key].replace("~", "~0").replace("/", "~1")

    def _unused(self, wanted: str) -> str:
        """A plain name for a definition."""
        base = "".join(letter if letter.isalnum() else "_" for letter in wanted)
        name, number = base, 1
        while name in self.definitions:
            number += 1
            name = f"{base}_{number}"
        return name


def _is_path(ref: object) -> bool:
    return isinstance(ref, str) and (ref == "#" or ref.startswith("#/"))


def _is_only_reference(schema: Schema) -> bool:
    """Return whether a schema is a reference without anything next to it that speaks of keys."""
    parts = ("properties", "patternProperties", "required", "allOf", *_CHOICES, *_SAYS_OTHERWISE)
    return "$ref" in schema and not any(key in schema for key in parts)


def _has_id(schema: Schema) -> bool:
    return isinstance(schema.get("$id"), str) and not schema["$id"].startswith("#")


def _mapping(value: Any) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _target(ref: str, root: Schema) -> tuple[Any, Schema]:
    """The schema that a path leads to, and the root for its own references. Raises OptionError."""
    found: Any = root
    for step in ref.split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (LookupError, ValueError, TypeError):
            raise OptionError(f"{ref:.200} refers to what is missing in it") from None
        if isinstance(found, Mapping) and _has_id(found):
            root = found
    return found, root


def _check_ends(ref: str, target: Any, root: Schema) -> None:
    """Raise OptionError for a reference that leads to nothing but references, which allow no value."""
    seen: set[int] = set()
    while isinstance(target, Mapping) and _is_path(target.get("$ref")):
        if id(target) in seen:
            raise OptionError(f"{ref:.200} refers to itself without end")
        seen.add(id(target))
        target, root = _target(target["$ref"], root)


def _references(value: Any) -> Iterator[Any]:
    """All that may be a reference, in constants too."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
