"""Keys of objects that are neither declared nor spelled in two ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.sample.schema.ecma import PatternError
from chaski.sample.schema.keywords import subschemas
from chaski.sample.schema.patterns import all_but

__all__ = ["with_distinct_keys"]

_BESIDE = ("allOf", "anyOf", "$ref")


def with_distinct_keys(schema: Any) -> Any:
    """Return a closed schema with patterns for further keys, instead of `additionalProperties`.

    `llguidance` takes further keys with any escapes, so that `"\\\\u0061"` could give a declared `a` again.
    """
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        waiting += (found for _, found in subschemas(part))
        # Only parts of other schemas leave further keys open.
        rest = part.get("additionalProperties", False)
        names = {*part.get("properties", {}), *part.get("required", [])}
        if rest is False or not names or any(key in part for key in _BESIDE):
            continue
        patterns: Mapping[str, Any] = part.get("patternProperties", {})
        try:
            part["patternProperties"] = {**patterns, all_but(sorted(names), patterns): rest}
            part["additionalProperties"] = False
        except PatternError:
            continue
    return schema
