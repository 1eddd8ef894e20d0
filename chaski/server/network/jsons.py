"""Reading JSON that anybody may send, and writing JSON."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from chaski.errors import OptionError
from chaski.formats.bounded_json import take_json
from chaski.text.parsers import json_text

__all__ = [
    "MAX_BODY",
    "MAX_VALUES",
    "InnerJson",
    "dump",
    "dump_text",
    "encode",
    "in_utf8",
    "load_object",
    "num_characters",
]

MAX_BODY = 64 << 20
"""Bytes of a JSON body at most."""

MAX_VALUES = 500_000
"""The most values of a body, names included."""

_encoder = json.JSONEncoder(
    ensure_ascii=False,
    separators=(",", ":"),
    check_circular=False,
    allow_nan=False,
    default=operator.methodcaller("tolist"),
)
# The ways to write a half of a surrogate pair.
_MAY_BE_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")


def dump(value: object) -> bytes:
    """Encode as compact JSON in UTF-8. Half of a surrogate pair, which is no text, becomes U+FFFD."""
    return in_utf8(encode(value))


def encode(value: object) -> str:
    """Encode as compact JSON. Arrays of numpy are lists."""
    return _encoder.encode(value)


def in_utf8(text: str) -> bytes:
    """Encode a text. Half of a surrogate pair becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _whole(text).encode()


def dump_text(value: object) -> str:
    """Encode as JSON with blanks, for a text. Raises ValueError for numbers that JSON has not."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def load_object(data: bytearray, list_name: str | None = None) -> Mapping[str, Any]:
    """Return the object that a body holds, or that a list stands for as its only field `list_name`.

    The body is empty afterwards, since a large one should not be in memory next to its values. Half of a
    surrogate pair in a string becomes U+FFFD. Raises OptionError for anything else than an object, numbers
    that are none or beyond the largest float, and two names that become the same; TooManyValuesError.
    """
    if not data or data.isspace():
        raise OptionError("missing request body")
    may_have_halves = _MAY_BE_HALF.search(data) is not None
    try:
        found = take_json(data, MAX_VALUES)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"invalid JSON: {error}") from None
    if list_name is not None and isinstance(found, list):
        found = {list_name: found}
    if not isinstance(found, dict):
        raise OptionError(f"the request must be a JSON object, not {type(found).__name__}")
    if may_have_halves:
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


class _Place(Struct):
    """A container of a body, with the place that it has in another one."""

    value: dict[str, Any] | list[Any]
    around: _Place | None = None
    key: str | int = ""

    def __str__(self) -> str:
        """The path, such as `messages[0].content`; empty for the whole body."""
        keys, place = [], self
        while place.around is not None:
            keys.append(f"[{place.key}]" if isinstance(place.key, int) else f".{place.key:.80}")
            place = place.around
        return "".join(reversed(keys)).removeprefix(".")


def _replace_halves(value: dict[str, Any]) -> None:
    """Replace halves of surrogate pairs in a value and everything inside by U+FFFD, as Go's decoder does.

    UTF-8 cannot hold them. Raises OptionError where two names of an object become the same.
    """
    pending = [_Place(value)]
    while pending:
        place = pending.pop()
        container: Any = place.value
        if isinstance(container, dict):
            if any(map(_HALF.search, container)):
                _rename(container, place)
            parts: Iterable[tuple[Any, Any]] = container.items()
        else:
            parts = enumerate(container)
        for key, inner in parts:
            if isinstance(inner, str):
                if _HALF.search(inner):
                    container[key] = _whole(inner)
            elif isinstance(inner, dict | list):
                pending.append(_Place(inner, place, key))


def _rename(container: dict[str, Any], place: _Place) -> None:
    renamed: dict[str, Any] = {}
    for name, inner in container.items():
        whole = _whole(name)
        if whole in renamed:
            raise OptionError(
                f"two names in {str(place) or 'the request'} differ only in halves of surrogate pairs, which "
                f"become U+FFFD: {whole:.80}; give each a name of valid Unicode"
            )
        renamed[whole] = inner
    container.clear()
    container.update(renamed)


def _whole(text: str) -> str:
    return _HALF.sub("\ufffd", text)
