"""`Body`: the JSON body of a route. A test compares its fields with those that the dialects read."""

from __future__ import annotations

from msgspec import Struct

from chaski.server.fields.description import FieldTable
from chaski.server.network.jsons import MAX_BODY

__all__ = ["LARGE", "SMALL", "TEXT", "Body"]

SMALL = 1 << 20
"""Bytes of a body of names, numbers and short texts."""
TEXT = 16 << 20
"""Bytes of a body with one text, such as the template or the license of a model."""
LARGE = MAX_BODY
"""Bytes of a body with prompts, conversations, documents or images."""


class Body(Struct, frozen=True):
    """The JSON body of a route.

    fields        the fields that its handler reads; `server/fields/audit.py` reports others
    most          bytes that it may have
    list_name     the field that a body stands for which is a list; None where it must be an object
    may_be_empty  whether a request without a body is one without fields
    """

    fields: FieldTable
    most: int = SMALL
    list_name: str | None = None
    may_be_empty: bool = False
