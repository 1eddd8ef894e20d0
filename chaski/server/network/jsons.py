"""Reading JSON that anybody may send, and writing JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from chaski.errors import OptionError
from chaski.formats.bounded_json import load_json
from chaski.text.parsers import json_text

__all__ = ["MAX_BODY", "MAX_VALUES", "InnerJson", "dump", "dump_text", "load_object", "num_characters"]

MAX_BODY = 64 << 20
"""Bytes of a JSON body at most."""

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


def num_characters(value: object) -> int:
    """Return about how many characters a value of JSON has when it is written."""
    count, pending = 0, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            count += len(item)
        elif isinstance(item, dict):
            pending += item.keys()
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        count += 2
    return count


class InnerJson(Struct):
    """Reads JSON in the strings of one request, such as the arguments of calls.

    A string counts as one value of its body, whatever it becomes. So the values of all these strings together
    are bounded as those of a body are.

    num_left  marks of values that further strings may contain
    """

    num_left: int = MAX_VALUES

    def load(self, text: str) -> Any:
        """Return the value of a string. Raises OptionError for too many, else ValueError, RecursionError."""
        self.num_left -= sum(map(text.count, ",:[{"))
        if self.num_left < 0:
            raise OptionError(f"the JSON in strings of the request has more than {MAX_VALUES} values")
        return json_text.load_json(text)


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
