"""Reading JSON that anybody may send, and writing JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
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

    Half of a surrogate pair in a string becomes U+FFFD. Raises OptionError for anything else than an object,
    and for numbers that are none or beyond the largest float; TooManyValuesError.
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
        _replace_halves(found)
    return found


def _replace_halves(value: dict[str, Any]) -> None:
    """Replace halves of surrogate pairs in a value and everything inside by U+FFFD, as Go's decoder does.

    UTF-8 cannot hold them. A name that gets the spelling of a later name is replaced by it.
    """
    pending: list[dict[str, Any] | list[Any]] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if any(map(_HALF.search, item)):
                renamed = {_whole(name): inner for name, inner in item.items()}
                item.clear()
                item.update(renamed)
            places: Iterable[tuple[Any, Any]] = item.items()
        else:
            places = enumerate(item)
        container: Any = item
        for place, inner in places:
            if isinstance(inner, str):
                if _HALF.search(inner):
                    container[place] = _whole(inner)
            elif isinstance(inner, dict | list):
                pending.append(inner)


def _whole(text: str) -> str:
    return _HALF.sub("\ufffd", text)
