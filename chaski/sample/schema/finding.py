"""The place in a schema that a compiler refuses without naming it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from chaski.errors import OptionError
from chaski.sample.schema.keywords import NAME, SchemaError, subschemas

__all__ = ["located"]

_MOST_TRIES = 100
_WHERE = re.compile(r"^at \d+\(\d+\): |failed to compile JSON schema: ")


def located(schema: Mapping[str, Any], why: str, problem: Callable[[Mapping[str, Any]], str]) -> SchemaError:
    """Return the error for a schema that was refused, with the smallest part that is refused alone.

    `problem` compiles a part and returns why it is refused, or an empty text.
    """
    name, pointer, root = "", "#", schema
    tries = 0
    while True:
        if isinstance(schema.get(NAME), str):
            name, pointer = schema[NAME][:120], "#"
        for steps, part in subschemas(schema):
            tries += 1
            if tries > _MOST_TRIES or not isinstance(part, Mapping):
                continue
            below = part if isinstance(part.get("$id"), str) else root
            definitions = {key: below[key] for key in ("$defs", "definitions") if key in below}
            try:
                found = problem({**part, **definitions})
            except (OptionError, RecursionError):
                continue
            if found:
                schema, root, why, pointer = part, below, found, f"{pointer}/{steps}"
                break
        else:
            short = _WHERE.sub("", why.partition("\n")[0])
            return SchemaError(f"{pointer[-100:]}: {short:.120}", name)
