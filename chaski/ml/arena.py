"""Places for buffers in one memory: those that are never alive at the same time share theirs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["ALIGNMENT", "Buffer", "aligned", "placed"]

ALIGNMENT = 64


class Buffer(Struct, frozen=True, eq=False):
    """Bytes of an arena, large enough for the largest run. `width` is the elements of one row."""

    size: int
    width: int


def placed(
    alive: Mapping[Buffer, tuple[int, int]], alignment: int = ALIGNMENT
) -> tuple[dict[Buffer, int], int]:
    """Return offsets of all buffers, and the arena's size: largest first, each at the lowest free place.

    `alive` has the first and the last of the steps that touch a buffer.
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
    """Round a size up."""
    return -(-size // alignment) * alignment


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]
