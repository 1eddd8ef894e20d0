"""Schemas with integers that no double holds, as rules in Lark.

`llguidance` reads the numbers of a schema as doubles. Here the objects and lists around such integers become
rules, the integers become expressions on their digits, and all other parts remain schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from chaski.sample.schema.keywords import subschemas
from chaski.sample.schema.numbers import digits_between, is_large

__all__ = ["UnwrittenError", "has_large", "lark_rules"]

_ANNOTATIONS = {"title", "description", "$comment", "default", "examples", "$schema", "$id", "$defs"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_NUMBERS = {*_BOUNDS, "const", "enum"}
_MOST_RULES = 500
_MOST_ITEMS = 100


class UnwrittenError(Exception):
    """A schema with another form around a large integer."""


def has_large(schema: Any, definitions: Mapping[str, Any] | None = None) -> bool:
    """Return whether a schema, or one that it refers to in `definitions`, speaks of a large integer."""
    waiting, seen = [schema], set()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        if any(key in part and is_large(part[key]) for key in _NUMBERS):
            return True
        waiting += (found for _, found in subschemas(part))
        name = _referred(part)
        if definitions and name is not None and name in definitions and name not in seen:
            seen.add(name)
            waiting.append(definitions[name])
    return False


def lark_rules(schema: Mapping[str, Any], blanks: Mapping[str, Any]) -> str:
    """Return the name of a rule for a closed schema, and after it the rules.

    Raises UnwrittenError for a schema that is not a tree of objects, lists, choices and references.
    """
    rules = _Rules(schema.get("$defs", {}), blanks)
    name = rules.symbol(schema)
    return "\n".join([name, *rules.written])


def _referred(schema: Mapping[str, Any]) -> str | None:
    ref = schema.get("$ref")
    return ref.removeprefix("#/$defs/") if isinstance(ref, str) and ref.startswith("#/$defs/") else None


class _Rules:
    def __init__(self, definitions: Mapping[str, Any], blanks: Mapping[str, Any]) -> None:
        self.written: list[str] = []
        self._definitions = definitions
        self._blanks = blanks
        self._referred: dict[str, str] = {}
        self._is_fixed = "item_separator" in blanks
        self._blank = "" if self._is_fixed else "json_blank"
        if not self._is_fixed:
            self.written += ["json_blank: JSON_BLANKS?", r"JSON_BLANKS: /\n {0,20}| {1,20}/"]

    def symbol(self, schema: Any) -> str:
        """The name of a rule for a schema."""
        if not has_large(schema, self._definitions):
            return self._json(schema)
        keys = set(schema) - _ANNOTATIONS
        types = schema.get("type")
        name = _referred(schema)
        if keys == {"$ref"} and name is not None:
            return self._reference(name)
        if keys == {"anyOf"}:
            return self._new(" | ".join(map(self.symbol, schema["anyOf"])))
        if isinstance(types, list):
            return self._new(" | ".join(self.symbol({**schema, "type": each}) for each in types))
        if keys & {"const", "enum"} and keys <= {"const", "enum", "type"}:
            return self._values([schema["const"]] if "const" in schema else schema["enum"], types)
        if types == "integer" and keys <= {"type", *_BOUNDS}:
            return self._integer(schema)
        if types == "object" and keys <= {"type", "properties", "required", "additionalProperties"}:
            return self._object(schema)
        if types == "array" and keys <= {"type", "items", "minItems", "maxItems"}:
            return self._array(schema)
        if types not in (None, "integer", "number") and keys & set(_BOUNDS):
            return self.symbol({key: value for key, value in schema.items() if key not in _BOUNDS})
        raise UnwrittenError

    def _new(self, body: str) -> str:
        if len(self.written) >= _MOST_RULES:
            raise UnwrittenError
        name = f"json_{len(self.written)}"
        self.written.append(f"{name}: {body}")
        return name

    def _json(self, schema: Any) -> str:
        whole = schema if isinstance(schema, Mapping) else {"anyOf": [schema]}
        return self._new(
            f"%json {json.dumps({'x-guidance': self._blanks, **whole, '$defs': self._definitions})}"
        )

    def _reference(self, name: str) -> str:
        if name not in self._definitions:
            raise UnwrittenError
        if name not in self._referred:
            self._referred[name] = symbol = self._new("")
            place = len(self.written) - 1
            self.written[place] = f"{symbol}: {self.symbol(self._definitions[name])}"
        return self._referred[name]

    def _values(self, values: list[Any], types: Any) -> str:
        if types is not None and types != "integer":
            raise UnwrittenError
        is_whole = [isinstance(value, int) and not isinstance(value, bool) for value in values]
        numbers = [value for value, whole in zip(values, is_whole, strict=True) if whole]
        others = [value for value, whole in zip(values, is_whole, strict=True) if not whole and types is None]
        if is_large(others):
            raise UnwrittenError
        options = [json.dumps(str(number)) for number in numbers]
        return self._new(" | ".join([*options, self._json({"enum": others})] if others else options))

    def _integer(self, schema: Mapping[str, Any]) -> str:
        least, most = [], []
        for key, shift in (("minimum", 0), ("exclusiveMinimum", 1)):
            least += [schema[key] + shift] if key in schema else []
        for key, shift in (("maximum", 0), ("exclusiveMaximum", -1)):
            most += [schema[key] + shift] if key in schema else []
        if not all(isinstance(bound, int) and not isinstance(bound, bool) for bound in (*least, *most)):
            raise UnwrittenError
        found = digits_between(max(least, default=None), min(most, default=None))
        if found is None:
            raise UnwrittenError
        self._new(f"JSON_NUMBER_{len(self.written)}")
        name = f"JSON_NUMBER_{len(self.written)}"
        self.written[-1] = f"{name}: /{found}/"
        return name

    def _object(self, schema: Mapping[str, Any]) -> str:
        properties, required = schema.get("properties", {}), set(schema.get("required", []))
        if schema.get("additionalProperties") is not False or not required <= properties.keys():
            raise UnwrittenError
        comma, colon = self._separators()
        tail = head = ""
        for name, part in reversed(properties.items()):
            if part is False:
                if name in required:
                    raise UnwrittenError
                continue
            item = f"{json.dumps(json.dumps(name))} {colon} {self.symbol(part)}"
            if name in required:
                head = self._new(f"{item} {tail}")
                tail = self._new(f"{comma} {item} {tail}")
            else:
                head = self._new(f"{item} {tail} | {head}" if head else f"({item} {tail})?")
                tail = self._new(f"({comma} {item})? {tail}")
        return self._new(f'"{{" {self._blank} {head} {self._blank} "}}"')

    def _array(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if least > _MOST_ITEMS or (most is not None and not least <= most <= _MOST_ITEMS) or most == 0:
            raise UnwrittenError
        item, (comma, _) = self.symbol(schema.get("items", True)), self._separators()
        rest = f"({comma} {item}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        items = f"{item} {rest}" if least else f"({item} {rest})?"
        return self._new(f'"[" {self._blank} {items} {self._blank} "]"')

    def _separators(self) -> tuple[str, str]:
        if self._is_fixed:
            return json.dumps(self._blanks["item_separator"]), json.dumps(self._blanks["key_separator"])
        return 'json_blank "," json_blank', 'json_blank ":" json_blank'
