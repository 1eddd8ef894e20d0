"""Encoding of large JSON in pieces, so that a large answer neither fills memory nor delays other requests.

Python's encoder holds the interpreter's lock until it is done, even in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from chaski.server.network.jsons import encode, in_utf8

__all__ = ["Items", "is_large", "pieces"]

_FEW = 1 << 12
"""Largest number of values that are encoded at once."""
_LONG = 1 << 16
"""Largest number of characters that are encoded at once, and the approximate size of a piece in bytes."""
_AT_ONCE = 512
"""Number of items of a list that are examined together."""
_WEIGHT = 32
"""Approximate number of values in each item of `Items`."""


class Items(Struct, frozen=True):
    """A list whose items are made from those of `source` when they are written."""

    source: Any
    make: Callable[[Any], object]

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[object]:
        return map(self.make, self.source)

    def __getitem__(self, part: slice) -> Items:
        return Items(self.source[part], self.make)

    def tolist(self) -> list[object]:
        """Return the items, as `tolist` of an array does."""
        return list(self)


def is_large(value: object) -> bool:
    """Return whether a value should be written in pieces. This takes only a short time for any value."""
    count, pending = 0, [value]
    while pending and count <= _FEW:
        item = pending.pop()
        count += 1
        if isinstance(item, str):
            count += len(item) * _FEW // _LONG
        elif isinstance(item, Mapping):
            count += len(item)
            pending += list(item.values())[:_FEW]
        elif isinstance(item, list | tuple):
            count += len(item)
            pending += item[:_FEW]
        elif isinstance(item, Items):
            count += len(item) * _WEIGHT
            pending.append(item.source)
        elif isinstance(item, np.ndarray):
            count += item.size
    return count > _FEW


def pieces(value: object) -> Iterator[bytes]:
    """Yield the compact JSON of a value as `dump` writes it, in pieces of about 64 KiB.

    Objects, lists, NumPy arrays and `Items` are written part by part.
    """
    waiting: list[str] = []
    length = 0
    for part in _parts(value):
        waiting.append(part)
        length += len(part)
        if length >= _LONG:
            yield in_utf8("".join(waiting))
            waiting, length = [], 0
    yield in_utf8("".join(waiting))


def _parts(value: Any) -> Iterator[str]:
    if not is_large(value):
        yield encode(value)
    elif isinstance(value, str):
        yield '"'
        for start in range(0, len(value), _LONG):
            yield encode(value[start : start + _LONG])[1:-1]
        yield '"'
    elif isinstance(value, Mapping):
        mark = "{"
        for name, inner in value.items():
            yield f"{mark}{encode(name)}:"
            yield from _parts(inner)
            mark = ","
        yield "}"
    else:
        mark = "["
        for start in range(0, len(value), _AT_ONCE):
            items = value[start : start + _AT_ONCE]
            if not is_large(items):
                yield mark + encode(items)[1:-1]
                mark = ","
                continue
            for item in items:
                yield mark
                yield from _parts(item)
                mark = ","
        yield "]"
