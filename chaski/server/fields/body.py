"""`Body`: the JSON body of a route. A test compares its fields with those that the dialects read."""

from __future__ import annotations

from msgspec import Struct

from chaski.server.fields.description import FieldTable
from chaski.server.network.jsons import MAX_BODY

__all__ = ["LARGE", "SMALL", "TEXT", "Body"]

SMALL = 1 << 20
"""Largest size in bytes of a body with names, numbers and short texts."""
TEXT = 16 << 20
"""Largest size in bytes of a body with one text, such as the template or the license of a model."""
LARGE = MAX_BODY
"""Largest size in bytes of a body with prompts, conversations, documents or images."""


class Body(Struct, frozen=True):
    """The JSON body of a route.

    fields        the fields that its handler reads; `server/fields/audit.py` reports others
    most          largest size of the body in bytes
    list_name     name of the field for a body that is a list; None if the body must be an object
    may_be_empty  whether a request without a body is taken as one without fields
    """

    fields: FieldTable
    most: int = SMALL
    list_name: str | None = None
    may_be_empty: bool = False
