"""Memory of blocks that is used again: fresh pages cost more than what is copied into them."""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt

__all__ = ["Buffers"]

U8 = npt.NDArray[np.uint8]

_MOST_SPARE = 64 << 20


class Buffers:
    """Hands out arrays, and takes those back that nobody refers to any more, by kind and size."""

    def __init__(self) -> None:
        self._spare: dict[tuple[int, int], list[U8]] = {}
        self._spare_bytes = 0

    def take(self, kind: int, num_bytes: int, is_overwritten: bool) -> U8:
        """Return an array (num_bytes,) of zeros; where the caller overwrites all, its places may hold others.

        Places that arrays of this `kind` and size never use are zeros either way.
        """
        spare = self._spare.get((kind, num_bytes))
        if spare:
            memory = spare.pop()
            self._spare_bytes -= num_bytes
            if not is_overwritten:
                memory[:] = 0
        else:
            memory = np.zeros(num_bytes, np.uint8)
        lent = memory[:]
        weakref.finalize(lent, self._give_back, kind, memory)
        return lent

    def _give_back(self, kind: int, memory: U8) -> None:
        if self._spare_bytes + memory.nbytes <= _MOST_SPARE:
            self._spare_bytes += memory.nbytes
            self._spare.setdefault((kind, memory.nbytes), []).append(memory)
