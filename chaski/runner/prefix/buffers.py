"""Memory of blocks that is used again: fresh pages cost more than the copying into them."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import numpy.typing as npt

__all__ = ["Buffers"]

U8 = npt.NDArray[np.uint8]

_MOST_SPARE = 64 << 20


class Buffers:
    """A pool that hands out arrays, and takes unreferenced ones back, by kind and size.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        # An array may be given back wherever its last reference ends, also while this thread has the lock.
        self._lock = threading.RLock()
        self._spare: dict[tuple[int, int], list[U8]] = {}
        self._spare_bytes = 0

    def take(self, kind: int, num_bytes: int, is_overwritten: bool = True) -> U8:
        """Return an array (num_bytes,) of zeros; where the caller overwrites all, its places may hold others.

        Places that arrays of this `kind` and size never use are zeros either way.
        """
        with self._lock:
            spare = self._spare.get((kind, num_bytes))
            memory = spare.pop() if spare else None
            if memory is not None:
                self._spare_bytes -= num_bytes
        if memory is None:
            memory = np.zeros(num_bytes, np.uint8)
        elif not is_overwritten:
            memory[:] = 0
        lent = memory[:]
        weakref.finalize(lent, self._give_back, kind, memory)
        return lent

    def _give_back(self, kind: int, memory: U8) -> None:
        with self._lock:
            if self._spare_bytes + memory.nbytes <= _MOST_SPARE:
                self._spare_bytes += memory.nbytes
                self._spare.setdefault((kind, memory.nbytes), []).append(memory)
