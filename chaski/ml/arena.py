"""Placement of buffers in one memory. Buffers that are never alive at the same time share bytes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping

from msgspec import Struct

__all__ = ["ALIGNMENT", "Buffer", "aligned", "placed"]

ALIGNMENT = 64


class Buffer(Struct, frozen=True, eq=False):
    """Bytes of an arena, enough for the largest run. `width` is the number of elements of a row."""

    size: int
    width: int


def placed(
    alive: Mapping[Buffer, tuple[int, int]], alignment: int = ALIGNMENT
) -> tuple[dict[Buffer, int], int]:
    """Return the offset of each buffer, and the arena's size.

    The largest buffer is placed first, and each buffer goes to the lowest free place.
    `alive`: the first and the last step that touch each buffer.
    """
    offsets: dict[Buffer, int] = {}
    taken: list[tuple[int, int, int, int]] = []  # offset, aligned size, first and last step; by offset
    for buffer in sorted(alive, key=lambda b: b.size, reverse=True):
        first, last = alive[buffer]
        offset = 0
        for start, size, begin, until in taken:
            if begin <= last and first <= until:
                if start - offset >= buffer.size:
                    break
                offset = max(offset, start + size)
        offsets[buffer] = offset
        insort(taken, (offset, aligned(buffer.size, alignment), first, last))
    return offsets, max((start + size for start, size, *_ in taken), default=0)


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """Round a size up to a multiple of the alignment."""
    return -(-size // alignment) * alignment
