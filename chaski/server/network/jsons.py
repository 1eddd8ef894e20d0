"""Writing JSON, and reading JSON in the strings of a request."""

from __future__ import annotations

import json
import operator
import re
from typing import Any

from msgspec import Struct

from chaski.errors import OptionError
from chaski.text.parsers import json_text

__all__ = [
    "HALF",
    "MAX_BODY",
    "MAX_VALUES",
    "InnerJson",
    "dump",
    "dump_text",
    "encode",
    "in_utf8",
    "num_characters",
    "without_halves",
]

MAX_BODY = 64 << 20
"""Largest size of a JSON body in bytes."""

MAX_VALUES = 500_000
"""Largest number of values of a body, including names."""

_encoder = json.JSONEncoder(
    ensure_ascii=False,
    separators=(",", ":"),
    check_circular=False,
    allow_nan=False,
    default=operator.methodcaller("tolist"),
)
HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which UTF-8 cannot hold."""


def dump(value: object) -> bytes:
    """Encode as compact JSON in UTF-8. Half of a surrogate pair, which is not valid text, becomes U+FFFD."""
    return in_utf8(encode(value))


def encode(value: object) -> str:
    """Encode as compact JSON. NumPy arrays become lists."""
    return _encoder.encode(value)


def in_utf8(text: str) -> bytes:
    """Encode a text. Half of a surrogate pair becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return without_halves(text).encode()


def dump_text(value: object) -> str:
    """Encode as JSON with spaces, for use in text. Raises ValueError for NaN and infinite numbers."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def num_characters(value: object) -> int:
    """Return the approximate number of characters of a value as JSON."""
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
    """Reader of JSON in the strings of one request, such as the arguments of calls.

    In its body, a string counts as one value, whatever it contains. Therefore the values in all these strings
    together have the same limit as the values of a body.

    num_left  how many of the characters `,:[{` further strings may contain
    """

    num_left: int = MAX_VALUES

    def load(self, text: str) -> Any:
        """Return the value of a string. Raises OptionError (too many values), ValueError, RecursionError."""
        self.num_left -= sum(map(text.count, ",:[{"))
        if self.num_left < 0:
            raise OptionError(f"the JSON in strings of the request has more than {MAX_VALUES} values")
        return json_text.load_json(text)


def without_halves(text: str) -> str:
    """Return a text with U+FFFD for each half of a surrogate pair."""
    return HALF.sub("\ufffd", text)
