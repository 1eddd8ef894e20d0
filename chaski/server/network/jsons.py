"""Reading JSON that anybody may send, and writing JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from chaski.errors import OptionError
from chaski.formats.bounded_json import load_json

__all__ = ["MAX_VALUES", "dump", "dump_text", "load_object"]

MAX_VALUES = 500_000
"""The most values of a body, names included."""

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False, allow_nan=False)
# The ways to write a half of a surrogate pair.
_MAY_BE_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")


def dump(value: object) -> bytes:
    """Encode as compact JSON. A lone surrogate, which is no text, becomes a question mark."""
    return _encoder.encode(value).encode(errors="replace")


def dump_text(value: object) -> str:
    """Encode as JSON with blanks, for a text. Raises ValueError for numbers that JSON has not."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def load_object(data: bytes | bytearray, list_name: str | None = None) -> Mapping[str, Any]:
    """Return the object that a body holds, or that a list stands for as its only field `list_name`.

    Raises OptionError for anything else, for numbers that are none or beyond the largest float, and for
    strings that are no text; TooManyValuesError.
    """
    if not data or data.isspace():
        raise OptionError("missing request body")
    try:
        found = load_json(data, MAX_VALUES)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"invalid JSON: {error}") from None
    if list_name is not None and isinstance(found, list):
        found = {list_name: found}
    if not isinstance(found, dict):
        raise OptionError(f"the request must be a JSON object, not {type(found).__name__}")
    if _MAY_BE_HALF.search(data):
        _require_text(found)
    return found


def _require_text(value: object) -> None:
    """Refuse halves of surrogate pairs anywhere, since UTF-8 cannot hold them."""
    pending: list[tuple[str, object]] = [("", value)]
    while pending:
        where, item = pending.pop()
        if isinstance(item, str) and _HALF.search(item):
            raise OptionError(f"{where or 'the request'} holds half of a surrogate pair, which is no text")
        if isinstance(item, dict):
            _require_text_names(where, item)
            pending += ((f"{where}.{name}" if where else name, inner) for name, inner in item.items())
        elif isinstance(item, list):
            pending += ((f"{where}[{index}]", inner) for index, inner in enumerate(item))


def _require_text_names(where: str, names: Mapping[str, object]) -> None:
    for name in names:
        if _HALF.search(name):
            raise OptionError(f"a name in {where or 'the request'} holds half of a surrogate pair")
