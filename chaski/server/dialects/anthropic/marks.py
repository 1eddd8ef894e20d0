"""`cache_control` of Anthropic's API: marks up to which a prompt stays cached for a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from chaski.chat.events import Done
from chaski.errors import OptionError
from chaski.server.fields.reader import Fields

__all__ = ["check_marks", "created_tokens", "seconds_of", "top_seconds", "without_marks"]

_FIELD = "cache_control"
_MOST = 4
_SECONDS = {"5m": 300, "1h": 3600}
_LONG = _SECONDS["1h"]


def seconds_of(fields: Fields) -> int:
    """Return the longest time in seconds of the marks of an object and its parts; 0 if there are none.

    Raises OptionError.
    """
    own = _own_seconds(fields)
    content = fields.data.get("content")
    if not isinstance(content, list):
        return own
    return max([own, *(_own_seconds(part) for part in fields.objects("content"))])


def top_seconds(fields: Fields) -> int:
    """Return the seconds of the mark of a whole request; 0 if there is none. Raises OptionError."""
    return _own_seconds(fields)


def check_marks(fields: Fields) -> None:
    """Raise OptionError if there are too many marks, or if a long mark follows a short one."""
    marks = [(place, seconds) for place, seconds in _marks(fields) if seconds]
    own = _own_seconds(fields)
    if own:
        last = list(_blocks(fields))[-1:]
        given = _own_seconds(last[0]) if last else 0
        if given not in (0, own):
            raise OptionError(
                f"Top-level cache_control has ttl={_ttl(own)!r} but the target block already has "
                f"cache_control with ttl={_ttl(given)!r}"
            )
        marks += [] if given else [("cache_control", own)]
    if len(marks) > _MOST:
        raise OptionError(
            f"A maximum of {_MOST} blocks with cache_control may be provided. Found {len(marks)}."
        )
    for (_, before), (place, seconds) in pairwise(marks):
        if seconds > before:
            raise OptionError(
                f"{place}.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control "
                "block. Note that blocks are processed in the following order: `tools`, `system`, `messages`."
            )


def created_tokens(done: Done) -> dict[str, int]:
    """Return the numbers of computed prompt tokens that stay cached, by the duration of their mark.

    A token under several marks counts for the longest time.
    """
    ends = {ttl: _end(done, seconds) for ttl, seconds in _SECONDS.items()}
    long = max(0, ends["1h"] - done.cached_tokens)
    short = max(0, ends["5m"] - max(done.cached_tokens, ends["1h"]))
    return {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}


def without_marks(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message without the marks of its blocks."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    blocks = [
        {name: value for name, value in block.items() if name != _FIELD} if isinstance(block, dict) else block
        for block in content
    ]
    return {**message, "content": blocks}


def _end(done: Done, seconds: int) -> int:
    return max((length for length, each in done.held_tokens if each == seconds), default=0)


def _own_seconds(fields: Fields) -> int:
    mark = Fields(fields.mapping(_FIELD), f"{fields.where}.{_FIELD}".lstrip("."))
    if not mark.data:
        return 0
    if (kind := mark.text("type")) != "ephemeral":
        raise OptionError(f"{mark.where}.type {kind!r:.40} must be ephemeral")
    ttl = mark.text("ttl", default="5m")
    if ttl not in _SECONDS:
        raise OptionError(f"{mark.where}.ttl {ttl!r:.40} must be 5m or 1h")
    return _SECONDS[ttl]


def _ttl(seconds: int) -> str:
    return "1h" if seconds == _LONG else "5m"


def _marks(fields: Fields) -> Iterator[tuple[str, int]]:
    """Yield the path and the seconds of each object that can have a mark, in Anthropic's order."""
    system = fields.objects("system") if isinstance(fields.data.get("system"), list) else ()
    for part in (*fields.objects("tools"), *system, *_blocks(fields)):
        if part.data.get("type") == "tool_result" and isinstance(part.data.get("content"), list):
            for inner in part.objects("content"):
                yield f"{inner.where}.{_FIELD}", _own_seconds(inner)
        yield f"{part.where}.{_FIELD}", _own_seconds(part)


def _blocks(fields: Fields) -> Iterator[Fields]:
    for message in fields.objects("messages"):
        if isinstance(message.data.get("content"), list):
            yield from message.objects("content")
