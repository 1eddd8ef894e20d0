"""Placement of buffers in one memory. Buffers that are never alive at the same time share bytes."""

from __future__ import annotations

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
    end = 0
    for buffer in sorted(alive, key=lambda b: b.size, reverse=True):
        rivals = sorted(
            (offsets[other], aligned(other.size, alignment))
            for other in offsets
            if _overlap(alive[other], alive[buffer])
        )
        offset = 0
        for start, size in rivals:
            if start - offset >= buffer.size:
                break
            offset = max(offset, start + size)
        offsets[buffer] = offset
        end = max(end, offset + aligned(buffer.size, alignment))
    return offsets, end


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """Round a size up to a multiple of the alignment."""
    return -(-size // alignment) * alignment


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]
