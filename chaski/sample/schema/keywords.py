"""Keywords of JSON Schema, by those that `llguidance` follows exactly.

`oneOf` is read as `anyOf`, and a `format` that is unknown says nothing, as the specification has it. What
cannot be followed is an error that names the keyword and its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import UnionType
from typing import Any, TypeAlias

from chaski.errors import OptionError
from chaski.sample.schema.closing import target_of
from chaski.sample.schema.ecma import PatternError
from chaski.sample.schema.negation import negated
from chaski.sample.schema.numbers import check_exact, check_multiple, inward, with_both_ends
from chaski.sample.schema.patterns import all_but, conjuncts, matches, one_pattern

__all__ = ["NAME", "SchemaError", "prepared", "subschemas"]

NAME = "x-chaski-name"
"""The key of a schema under which a request's field or a tool is named, for errors."""

Schema: TypeAlias = Mapping[str, Any]

_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
_MAPPINGS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems", "unevaluatedProperties")
_MOST_SECONDS = 3
_SHAPES: Mapping[str, tuple[type | UnionType, str]] = {
    **dict.fromkeys(_MAPPINGS, (Mapping, "an object")),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems", "enum", "required"), (list, "a list")),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), (int | float, "a number")),
    "type": (str | list, "a text or a list"),
}
_UNSUPPORTED = {
    "uniqueItems": "leave it out, and remove duplicates afterwards",
    "contains": "give the items by items or prefixItems",
    "minContains": "leave it out",
    "maxContains": "leave it out",
    "unevaluatedItems": "use items or additionalItems",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
_IGNORED = ("$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "deprecated", "contentSchema", NAME)


class SchemaError(OptionError):
    """A schema that cannot be followed. `where` names the field or the tool that gives it."""

    def __init__(self, why: str, where: str = "") -> None:
        super().__init__(why)
        self.where = where


def prepared(schema: Schema, keeps_numbers: bool = False) -> dict[str, Any]:
    """Return the schema by keywords that are followed exactly; `keeps_numbers` leaves large ones as they are.

    Raises SchemaError, and RecursionError for a schema that is too deep.
    """
    return dict(_Keywords(schema, keeps_numbers).read(schema, _Place("", "#")))


def subschemas(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the schemas that stand directly in a schema, with the pointer to each."""
    for key, value in schema.items():
        if key in _MAPPINGS and isinstance(value, Mapping):
            yield from ((f"{key}/{_step(name)}", part) for name, part in value.items())
        elif key in (*_LISTS, "oneOf") and isinstance(value, list):
            yield from ((f"{key}/{index}", part) for index, part in enumerate(value))
        elif key in _SINGLE and isinstance(value, Mapping):
            yield key, value


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


class _Place:
    """The place of a schema, and the name of the field that it is in."""

    def __init__(self, name: str, pointer: str) -> None:
        self.name = name
        self.pointer = pointer

    def at(self, *steps: object) -> _Place:
        return _Place(self.name, "/".join([self.pointer, *(_step(str(step)) for step in steps)]))

    def error(self, why: str) -> SchemaError:
        place = self.pointer if len(self.pointer) <= 100 else f"…{self.pointer[-100:]}"
        return SchemaError(f"{place}: {why}", self.name)


class _Keywords:
    def __init__(self, root: Schema, keeps_numbers: bool) -> None:
        self._root = root
        self._keeps_numbers = keeps_numbers
        self._end = time.monotonic() + _MOST_SECONDS

    def read(self, schema: Any, place: _Place) -> Any:
        """A schema by other keywords."""
        if isinstance(schema, bool):
            return schema
        _check_shapes(schema, place)
        if isinstance(schema.get(NAME), str):
            place = _Place(schema[NAME][:120], "#")
        result: dict[str, Any] = {}
        # The names of keys decide about the other keywords of an object, so they come last.
        for key, value in sorted(schema.items(), key=lambda item: item[0] == "propertyNames"):
            if key not in _IGNORED:
                self._keyword(result, schema, key, value, place)
        if not self._keeps_numbers:
            with_both_ends(result)
        return result

    def _keyword(self, result: dict[str, Any], schema: Schema, key: str, value: Any, place: _Place) -> None:
        here = place.at(key)
        special = getattr(self, f"_read_{_SPECIAL[key]}", None) if key in _SPECIAL else None
        if special is not None:
            special(result, schema, value, here)
        elif key in _UNSUPPORTED:
            self._require_idle(schema, key, value, place)
        elif key in _MAPPINGS and isinstance(value, Mapping):
            result[key] = {name: self.read(part, here.at(name)) for name, part in value.items()}
        elif key in _LISTS and isinstance(value, list):
            parts = [self.read(part, here.at(index)) for index, part in enumerate(value)]
            result[key] = [*result.get(key, []), *parts] if key == "allOf" else parts
        elif key in _SINGLE:
            result[key] = self.read(value, here)
        else:
            result[key] = value

    def _require_idle(self, schema: Schema, key: str, value: Any, place: _Place) -> None:
        """Raise SchemaError for a keyword that forbids something and cannot be followed."""
        is_idle = value is False or (key.endswith("Contains") and "contains" not in schema)
        if is_idle or (key == "uniqueItems" and schema.get("maxItems") in (0, 1)):
            return
        raise place.error(f"{key} cannot be followed; {_UNSUPPORTED[key]}")

    def _also(self, result: dict[str, Any], part: Any) -> None:
        """Demand another schema, too."""
        result["allOf"] = [*result.get("allOf", []), part]

    def _read_one_of(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        if not isinstance(value, list):
            raise here.error("oneOf must be a list")
        parts = [self.read(part, here.at(index)) for index, part in enumerate(value)]
        if "anyOf" in schema:
            self._also(result, {"anyOf": parts})
        else:
            result["anyOf"] = parts

    def _read_pattern(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        first, *others = self._tried(here, lambda: conjuncts(_text(value)))
        result["pattern"] = first
        for other in others:
            self._also(result, {"pattern": other})

    def _read_format(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        if isinstance(value, str) and value in _FORMATS:
            result["format"] = value

    def _read_constant(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        if not self._keeps_numbers:
            self._tried(here, lambda: check_exact(value))
        result["enum" if "enum" in here.pointer.rpartition("/")[2] else "const"] = value

    def _read_bound(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        key = here.pointer.rpartition("/")[2]
        bound = value if self._keeps_numbers else self._tried(here, lambda: inward(key, value))
        result[key] = bound

    def _read_multiple(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        self._tried(here, lambda: check_multiple(value))
        result["multipleOf"] = value

    def _read_patterns(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        if not isinstance(value, Mapping):
            raise here.error("patternProperties must be an object")
        result["patternProperties"] = {
            self._tried(here.at(key), partial(one_pattern, key)): self.read(part, here.at(key))
            for key, part in value.items()
        }

    def _read_names(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        """Names of keys: those that are listed become properties, others a pattern."""
        value = self._resolved(value, here)
        if value is True or not set(value or ()) & {"enum", "const", "pattern", "minLength", "maxLength"}:
            if value is False:
                result["maxProperties"] = 0
            return
        if "patternProperties" in schema:
            raise here.error("propertyNames next to patternProperties cannot be followed; leave one out")
        rest = schema.get("additionalProperties", True)
        is_closed = rest is False or ("properties" in schema and "additionalProperties" not in schema)
        names = [value["const"]] if "const" in value else value.get("enum")
        wanted = [value["pattern"]] if "pattern" in value else []
        least, most = value.get("minLength", 0), value.get("maxLength", "")
        wanted += [f"^[^]{{{least},{most}}}$"] if least or most != "" else []

        def fits(name: object) -> bool:
            return (names is None or name in names) and all(matches(each, str(name)) for each in wanted)

        def limit() -> None:
            declared = schema.get("properties", {})
            known = {name: part if fits(name) else False for name, part in declared.items()}
            if not is_closed and names is not None:
                known |= {name: rest for name in names if name not in known and fits(name)}
            elif not is_closed:
                found = one_pattern(wanted[0]) if len(wanted) == 1 else all_but((), (), wanted)
                result["patternProperties"] = {found: self.read(rest, here)}
            if known or names is not None:
                result["properties"] = {name: self.read(part, here) for name, part in known.items()}
            result["additionalProperties"] = False

        self._tried(here, limit)

    def _read_required_with(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        """Keys, or a schema, that a key brings with it."""
        for name, needs in (value if isinstance(value, Mapping) else {}).items():
            needed = needs if isinstance(needs, list) else []
            brings: dict[str, Any] = {"required": [name, *needed]}
            if not isinstance(needs, list):
                brings = {"allOf": [brings, self.read(needs, here.at(name))]}
            self._also(result, {"anyOf": [{"properties": {name: False}}, brings]})

    def _read_not(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        other = self._tried(here, lambda: negated(self._resolved(value, here), schema))
        self._also(result, self.read(other, here))

    def _read_if(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        if not {"then", "else"} & schema.keys():
            return
        other = self._tried(here, lambda: negated(self._resolved(value, here), schema))
        ways = [
            {"allOf": [self.read(part, here), self.read(schema.get(key, True), here)]}
            for part, key in ((value, "then"), (other, "else"))
        ]
        self._also(result, {"anyOf": ways})

    def _read_nothing(self, result: dict[str, Any], schema: Schema, value: Any, here: _Place) -> None:
        """Leave out what `if` reads."""

    def _resolved(self, schema: Any, here: _Place) -> Any:
        """The schema that a lone reference leads to, which is not read yet."""
        for _ in range(16):
            if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
                break
            schema = target_of(schema["$ref"], self._root)
        waiting = [schema]
        while waiting:
            part = waiting.pop()
            if not isinstance(part, bool):
                _check_shapes(part, here)
                waiting += (found for _, found in subschemas(part))
        return schema

    def _tried(self, here: _Place, run: Callable[[], Any]) -> Any:
        if time.monotonic() > self._end:
            raise here.error(f"the patterns up to here took more than {_MOST_SECONDS} s; use fewer of them")
        try:
            return run()
        except (PatternError, ValueError, TypeError) as error:
            raise here.error(f"{error!s:.160}") from None


def _check_shapes(schema: Any, place: _Place) -> None:
    """Raise SchemaError for what is no schema, and for keywords with values of another type than theirs."""
    if not isinstance(schema, Mapping):
        raise place.error("this must be a schema, that is an object, true or false")
    for key in _SHAPES.keys() & schema.keys():
        kind, wanted = _SHAPES[key]
        if not isinstance(schema[key], kind) or isinstance(schema[key], bool):
            raise place.at(key).error(f"this must be {wanted}")
    for key in ("required", "type"):
        names = schema.get(key, "")
        if isinstance(names, list) and not all(isinstance(name, str) for name in names):
            raise place.at(key).error("this must be a list of texts")


_SPECIAL = {
    **dict.fromkeys(("enum", "const"), "constant"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "bound"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), "required_with"),
    **dict.fromkeys(("then", "else"), "nothing"),
    "oneOf": "one_of",
    "pattern": "pattern",
    "format": "format",
    "multipleOf": "multiple",
    "patternProperties": "patterns",
    "propertyNames": "names",
    "not": "not",
    "if": "if",
}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("pattern must be a text")
    return value
