"""JSON from strangers, and JSON for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from chaski.errors import OptionError

__all__ = ["dump", "dump_text", "load_object"]

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False, allow_nan=False)


def dump(value: object) -> bytes:
    """As compact as it gets. A lone surrogate, which is no text, becomes a question mark."""
    return _encoder.encode(value).encode(errors="replace")


def dump_text(value: object) -> str:
    """JSON that goes into a text, with blanks. Raises ValueError for numbers that JSON has not."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def load_object(data: bytes) -> Mapping[str, Any]:
    """The object that a body holds. Raises OptionError for anything else, numbers that are none included."""
    if not data.strip():
        raise OptionError("missing request body")
    try:
        found = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"invalid JSON: {error}") from None
    if not isinstance(found, dict):
        raise OptionError(f"the request must be a JSON object, not {type(found).__name__}")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
