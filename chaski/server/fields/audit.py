"""Fields of requests that no handler reads: some are refused, some accepted, and all others reported.

The tables of this folder list the fields that each endpoint reads, including those inside objects and lists.
No other field that could change the answer is ignored silently:

* Known fields of other engines that would change the answer (`REFUSED`) are refused, unless their value is
  neutral.
* Known fields that never change an answer (`HARMLESS`) are accepted.
* All other fields are named in the header `x-chaski-ignored`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from chaski.errors import UnsupportedError
from chaski.server.fields.description import ReadFields, ReadParts
from chaski.server.fields.reader import MAX_ITEMS
from chaski.server.fields.unread import HARMLESS, REFUSED

__all__ = ["Known", "unread_fields"]


class Known(Protocol):
    """The part of `Field` that the audit uses."""

    @property
    def parts(self) -> ReadParts | None: ...


def unread_fields(body: Mapping[str, Any], known: Mapping[str, Known]) -> Iterator[str]:
    """Yield the names of fields that an endpoint does not read: `options.heat`, `messages[].name`.

    Raises UnsupportedError for a field that would change the answer.
    """
    for name, value in body.items():
        field = known.get(name)
        if field is None:
            yield from _judged(name, value, name)
        elif field.parts is not None:
            yield from _unread_within(value, field.parts, name)


def _unread_within(value: object, inner: ReadParts, path: str) -> Iterator[str]:
    """Yield the names of unread fields of an object, or of the objects of a list."""
    if isinstance(value, list):
        # The reader of the field refuses longer lists.
        items, path = value[:MAX_ITEMS], f"{path}[]"
    else:
        items = [value]
    for item in items:
        if not isinstance(item, dict):
            continue
        known = inner if isinstance(inner, ReadFields) else inner.of(item.get(inner.tag, inner.usual))
        if known is None:
            continue
        for name, part in item.items():
            if name in known.inner:
                # Most values are texts, which have no fields.
                if isinstance(part, dict | list) and (further := known.inner[name]) is not None:
                    yield from _unread_within(part, further, f"{path}.{name}")
            elif not known.has(name) and part not in known.neutral.get(name, ()):
                yield from _judged(name, part, f"{path}.{name}")


def _judged(name: str, value: object, path: str) -> Iterator[str]:
    """Yield the path of an unread field if the header must name it. Raises UnsupportedError."""
    if value is None or name in HARMLESS:
        return
    neutral = REFUSED.get(name)
    if neutral is None:
        yield path
    elif value not in neutral:
        raise UnsupportedError(f"{path} is not supported here; leave it out")
