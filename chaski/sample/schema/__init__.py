"""JSON schemas as `llguidance` can follow them exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.sample.schema.closing import closed
from chaski.sample.schema.finding import located
from chaski.sample.schema.keys import with_distinct_keys
from chaski.sample.schema.keywords import NAME, SchemaError, prepared

__all__ = ["NAME", "SchemaError", "closed", "exact", "located", "named"]


def exact(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that `llguidance` follows exactly, with closed objects; see `closed`.

    Raises SchemaError for keywords that it cannot follow, OptionError for wrong references, and
    RecursionError for a schema that is too deep.
    """
    found: dict[str, Any] = with_distinct_keys(closed(prepared(schema)))
    return found


def named(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the schema with the name under which errors speak of it."""
    return {NAME: name, **schema}
