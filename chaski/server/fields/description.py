"""`Field`: the description of a field of a request. `ReadFields`: the fields that are read inside it."""

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
    """The fields that are read in an object, or in each object of a list.

    inner    the fields that are read, each with the fields that are read inside it; None for all of them
    neutral  fields that are not read, with the values that ask for nothing
    is_open  True if all fields except those of `neutral` are read
    """

    inner: Mapping[str, ReadParts | None]
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    is_open: bool = False

    def has(self, name: str) -> bool:
        """Return whether a field is read."""
        return name in self.inner or (self.is_open and name not in self.neutral)


class ReadKinds(Struct, frozen=True):
    """Objects of several kinds, which the field `tag` names.

    The fields of an object of an unknown kind are not checked: its dialect refuses the object, or reports it
    as ignored.

    kinds   the fields by kind; for Anthropic's tools, the kind lacks the date of `bash_20250124`
    usual   the kind of an object without the field `tag`
    """

    kinds: Mapping[str, ReadFields]
    usual: str = ""
    tag: str = "type"

    def of(self, kind: object) -> ReadFields | None:
        """Return the fields that are read in an object of a kind; None if the kind is unknown."""
        if not isinstance(kind, str):
            return None
        return self.kinds.get(kind) or self.kinds.get(_DATE.sub("", kind))


ReadParts: TypeAlias = ReadFields | ReadKinds


def reads(
    *names: str, neutral: Mapping[str, tuple[object, ...]] | None = None, **inner: ReadParts
) -> ReadFields:
    """Describe an object of which `names` are read as a whole, and `inner` only as far as described."""
    return ReadFields({**dict.fromkeys(names), **inner}, neutral or {})


class Field(Struct, frozen=True):
    """A field of a request.

    schema  its JSON schema, without the description
    meaning its description, for users
    parts   the fields that are read in an object or in the objects of a list; None if all of it is read
    """

    schema: Mapping[str, Any]
    meaning: str
    is_required: bool = False
    parts: ReadParts | None = None


FieldTable: TypeAlias = Mapping[str, Field]
