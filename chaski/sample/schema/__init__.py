"""JSON schemas as `llguidance` can follow them exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from chaski.sample.schema.closing import closed
from chaski.sample.schema.finding import located
from chaski.sample.schema.keys import with_distinct_keys
from chaski.sample.schema.keywords import NAME, SchemaError, prepared
from chaski.sample.schema.large import UnwrittenError, has_large, lark_rules

__all__ = ["NAME", "SchemaError", "closed", "json_rule", "located", "named"]


def json_rule(schema: Mapping[str, Any], blanks: Mapping[str, Any]) -> str:
    """Return the body of a rule in Lark that follows a schema exactly, with closed objects; see `closed`.

    More rules may stand after it. `blanks` is the layout of JSON, as `llguidance` has it. Raises SchemaError
    for keywords that cannot be followed, OptionError for wrong references, and RecursionError for a schema
    that is too deep.
    """
    if has_large(schema):
        with suppress(UnwrittenError):
            return lark_rules(with_distinct_keys(closed(prepared(schema, keeps_numbers=True))), blanks)
    found = with_distinct_keys(closed(prepared(schema)))
    return "%json " + json.dumps({"x-guidance": blanks, **found})


def named(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the schema with the name under which errors speak of it."""
    return {NAME: name, **schema}
