"""Which cells are free, and which are taken next: counts of owners, and no positions.

Neighbouring tokens get neighbouring cells where that is possible, so that attention reads memory in order.
Where tokens are stored never changes a result.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Cells"]

I32 = npt.NDArray[np.int32]


class Cells:
    """`count` cells, each owned by any number of sequences; one that nobody owns is free."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._owners = np.zeros(count, np.int32)
        self._claims = np.zeros(count, np.int32)

    @property
    def num_free(self) -> int:
        """How many cells nobody owns."""
        return self.count - int(np.count_nonzero(self._owners))

    def share(self, cells: I32) -> None:
        """Count one more owner of each; no cell may be listed twice."""
        self._owners[cells] += 1

    def release(self, cells: I32) -> None:
        """Count one owner less of each, as often as it is listed."""
        np.subtract.at(self._owners, cells, 1)

    def are_shared(self, cells: I32) -> bool:
        """Whether any of them has more than one owner."""
        return bool((self._owners[cells] > 1).any())

    def take(self, wanted: I32, sequences: I32) -> I32:
        """A free cell for each token: the one that it wants (n,), unless that is taken or wanted twice.

        Tokens of one sequence (n,) that cannot have theirs get neighbours somewhere else.
        """
        order = np.arange(len(wanted), dtype=np.int32)
        self._claims[wanted] = order
        is_lost = (self._owners[wanted] > 0) | (self._claims[wanted] != order)
        if not is_lost.any():
            self._owners[wanted] = 1
            return wanted
        self._owners[wanted[~is_lost]] = 1
        cells = wanted.copy()
        for sequence in np.unique(sequences[is_lost]).tolist():
            rows = is_lost & (sequences == sequence)
            cells[rows] = self._take_from_longest_run(int(np.count_nonzero(rows)))
        return cells

    def _take_from_longest_run(self, count: int) -> I32:
        """Cells from the middle of the longest free run, so that who writes before it has room to go on."""
        free = np.flatnonzero(self._owners == 0)
        assert len(free) >= count, f"{count} cells are needed and {len(free)} are free"
        starts = np.flatnonzero(np.diff(free, prepend=-2) != 1)
        lengths = np.diff(starts, append=len(free))
        longest = lengths.argmax()
        begin = starts[longest] + max(0, lengths[longest] - count) // 2
        cells = free.take(np.arange(begin, begin + count), mode="wrap").astype(np.int32)
        self._owners[cells] = 1
        return cells
