"""Constraints on answers, under the names of vLLM and llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from chaski.errors import OptionError, UnsupportedError
from chaski.sample.schema import named
from chaski.server.fields.reader import Fields
from chaski.server.network.jsons import InnerJson

__all__ = ["Constrained", "read_constraint"]

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class Constrained(Struct, frozen=True):
    """The constraint on an answer: a `format`, or `options` with another kind of constraint.

    given_as: name of the request's field for each option
    """

    format: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    given_as: Mapping[str, str] = field(default_factory=dict)


def read_constraint(fields: Fields, name: str, format: Any) -> Constrained:
    """Read the constraint of a request. `name` is the field from which `format` was read.

    Raises OptionError for more than one constraint, or for a value of the wrong type.
    """
    found = []
    if format is not None:
        found = [(name, Constrained(_called(format, name), given_as={"format": name}))]
    found += _named(fields)
    if len(found) > 1:
        raise OptionError(f"{found[0][0]} and {found[1][0]} exclude each other; send only one of them")
    return found[0][1] if found else Constrained()


def _named(fields: Fields) -> Iterator[tuple[str, Constrained]]:
    for name, kind in (
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
        ("json_schema", "json"),
        ("grammar", "grammar"),
    ):
        # In llama.cpp, an empty text means no constraint.
        if fields.has(name) and fields.data[name] != "":
            yield name, _constrained(fields, name, kind)
    within = Fields(fields.mapping("structured_outputs"), "structured_outputs")
    for kind in _KINDS:
        if within.has(kind) and within.data[kind] is not False:
            yield f"structured_outputs.{kind}", _constrained(within, kind, kind)


def _constrained(fields: Fields, name: str, kind: str) -> Constrained:
    path = f"{fields.where}.{name}".lstrip(".")
    match kind:
        case "json":
            return Constrained(_called(_schema(fields, name), path), given_as={"format": path})
        case "json_object":
            return Constrained("json" if fields.flag(name, False) else None, given_as={"format": path})
        case "choice":
            fields.items(name)
            return Constrained(options={kind: fields.texts(name)}, given_as={kind: path})
        case "structural_tag":
            raise UnsupportedError(f"{path} is not supported here; leave it out")
        case _:
            return Constrained(options={kind: fields.text(name)}, given_as={kind: path})


def _called(format: Any, name: str) -> Any:
    return named(format, name) if isinstance(format, Mapping) else format


def _schema(fields: Fields, name: str) -> Mapping[str, Any]:
    """Return a schema, which is given as an object or as text with JSON."""
    if not isinstance(fields.data[name], str):
        return fields.mapping(name)
    try:
        return Fields({name: InnerJson().load(fields.text(name))}, fields.where).mapping(name)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{name} is not valid JSON: {error}") from None
