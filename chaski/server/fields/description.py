"""`Field` describes a field of a request; `ReadFields` says which fields are read inside of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct, field

__all__ = [
    "FLAG",
    "INPUTS",
    "NUMBER",
    "OBJECT",
    "OBJECTS",
    "TEXT",
    "TEXTS",
    "TEXT_OR_OBJECT",
    "TEXT_OR_OBJECTS",
    "TEXT_OR_TEXTS",
    "WHOLE",
    "WHOLES",
    "Field",
    "FieldTable",
    "ReadFields",
    "ReadKinds",
    "ReadParts",
    "reads",
]

_DATE = re.compile(r"_\d{8}$")

TEXT = {"type": "string"}
FLAG = {"type": "boolean"}
WHOLE = {"type": "integer"}
NUMBER = {"type": "number"}
OBJECT = {"type": "object"}
OBJECTS = {"type": "array", "items": OBJECT}
TEXTS = {"type": "array", "items": TEXT}
WHOLES = {"type": "array", "items": WHOLE}
TEXT_OR_TEXTS = {"oneOf": [TEXT, TEXTS]}
INPUTS = {"oneOf": [TEXT, WHOLES, {"type": "array", "items": {"oneOf": [TEXT, WHOLES]}}]}
TEXT_OR_OBJECTS = {"oneOf": [TEXT, OBJECTS]}
TEXT_OR_OBJECT = {"oneOf": [TEXT, OBJECT]}


class ReadFields(Struct, frozen=True):
    """The fields that are read of an object, or of each object of a list.

    inner    the fields that are read, each with what is read inside of it; None where all of it is
    neutral  fields that are not read, with the values by which they ask for nothing
    is_open  True if all fields are read but those of `neutral`
    """

    inner: Mapping[str, ReadParts | None]
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    is_open: bool = False

    def has(self, name: str) -> bool:
        """Return whether a field is read."""
        return name in self.inner or (self.is_open and name not in self.neutral)


class ReadKinds(Struct, frozen=True):
    """Objects of several kinds, which their field `tag` names.

    An object of a kind that is not here is not looked into: its dialect refuses it, or names all of it.

    kinds   the fields by kind; those of Anthropic's tools without the date in `bash_20250124`
    usual   the kind of an object without that field
    """

    kinds: Mapping[str, ReadFields]
    usual: str = ""
    tag: str = "type"

    def of(self, kind: object) -> ReadFields | None:
        """Return the fields that are read of an object of a kind, if it is known."""
        if not isinstance(kind, str):
            return None
        return self.kinds.get(kind) or self.kinds.get(_DATE.sub("", kind))


ReadParts: TypeAlias = ReadFields | ReadKinds


def reads(
    *names: str, neutral: Mapping[str, tuple[object, ...]] | None = None, **inner: ReadParts
) -> ReadFields:
    """Describe an object of which `names` are read whole, and of `inner` what is said there."""
    return ReadFields({**dict.fromkeys(names), **inner}, neutral or {})


class Field(Struct, frozen=True):
    """A field of a request.

    schema  its JSON schema, without the description
    parts   what is read of an object, or of the objects of a list; None where all of it is
    """

    schema: Mapping[str, Any]
    meaning: str
    is_required: bool = False
    parts: ReadParts | None = None


FieldTable: TypeAlias = Mapping[str, Field]
