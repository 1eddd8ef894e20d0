"""Memory in small pages: of a large area of which a little is used, little is taken.

The system would give memory in pages of 2 MB. Keys and values of a token are spread over thousands of places,
one for each layer and head, so that a short text would take that many large pages.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SmallPages"]

_MAPS = Path("/proc/self/maps")
_NO_HUGE_PAGES = 15  # MADV_NOHUGEPAGE

_Range = tuple[int, int]


class SmallPages:
    """Memory that is reserved between `begin` and `end`, on a system that lists a process's memory."""

    def __init__(self) -> None:
        self._before: list[_Range] | None = None

    def begin(self) -> None:
        """Take memory in small pages that is reserved from now on, if that has not begun already."""
        if self._before is None and _MAPS.exists():
            self._before = _private_memory()

    def end(self) -> None:
        """Take memory in pages of any size that is reserved from now on."""
        if self._before is None:
            return
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for begin, end in _without(_private_memory(), self._before):
            advise(begin, end - begin, _NO_HUGE_PAGES)  # advice only: a system without large pages refuses it
        self._before = None


def _private_memory() -> list[_Range]:
    """Return the addresses of this process's own memory, in ascending order."""
    found = []
    with _MAPS.open("rb") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) == 5 and fields[1] == b"rw-p":
                begin, _, end = fields[0].partition(b"-")
                found.append((int(begin, 16), int(end, 16)))
    return found


def _without(ranges: list[_Range], others: list[_Range]) -> Iterator[_Range]:
    """Yield the parts of ranges that none of the others contains. Both are in ascending order."""
    for begin, end in ranges:
        for other_begin, other_end in others:
            if other_end <= begin or other_begin >= end:
                continue
            if other_begin > begin:
                yield begin, other_begin
            begin = max(begin, other_end)
        if begin < end:
            yield begin, end
