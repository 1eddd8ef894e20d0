"""The cells of a cache: which are free, and which are taken next. Positions are not known here.

Neighbouring tokens get neighbouring cells where that is possible, so that attention reads memory in order.
Where tokens are stored never changes a result.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress, count

import numpy as np
import numpy.typing as npt

__all__ = ["Cells"]

I32 = npt.NDArray[np.int32]


class Cells:
    """`count` cells, each owned by any number of sequences; a cell without owners is free.

    Memory is read quickest where a token's position and cell are the same modulo `alignment`.
    """

    def __init__(self, count: int, alignment: int = 1) -> None:
        self.alignment = alignment
        self.count = self.num_free = count
        self._owners = np.zeros(count, np.int32)
        # The same numbers, quicker to reach for a few of them.
        self._view = self._owners.data
        self._ones = np.ones(count, np.int32).data
        self._used = np.zeros(count, np.bool_)

    @property
    def num_unused(self) -> int:
        """The number of cells that no sequence has ever owned."""
        return self.count - int(np.count_nonzero(self._used))

    def share(self, cells: I32) -> None:
        """Count one more owner of each; no cell may be listed twice."""
        self._owners[cells] += 1

    def release(self, cells: I32) -> None:
        """Count one owner less of each; no cell may be listed twice."""
        owners = self._owners[cells] - np.int32(1)
        self._owners[cells] = owners
        self.num_free += len(cells) - int(np.count_nonzero(owners))

    def first_shared(self, cells: I32) -> int:
        """The index of the first of them that has more than one owner; else how many they are."""
        is_shared = self._owners[cells] > 1
        return int(is_shared.argmax()) if is_shared.any() else len(cells)

    def are_owned(self, cell: int, num_cells: int, owners: int) -> bool:
        """Return whether each of `num_cells` cells from `cell` on has exactly `owners` owners."""
        return bool((self._owners[cell : cell + num_cells] == owners).all())

    def free_pages(self, page: int) -> I32:
        """The numbers of the pages of `page` cells in which every cell is free, ascending."""
        is_used = self._owners[: self.count // page * page].reshape(-1, page).any(axis=1)
        return np.flatnonzero(~is_used).astype(np.int32)

    def recount(self, owned: Iterable[I32]) -> None:
        """Count all owners again: each item of `owned` has the cells of one."""
        self._owners[:] = 0
        for cells in owned:
            self._owners[cells] += 1
        self.num_free = self.count - int(np.count_nonzero(self._owners))

    def take(self, cell: int, num_cells: int) -> int:
        """Take up to `num_cells` free cells in a row from `cell` on; return their number."""
        owners = self._view[cell : cell + num_cells]
        taken = next(compress(count(), owners), len(owners))
        owners[:taken] = self._ones[:taken]
        self._used[cell : cell + taken] = True
        self.num_free -= taken
        return taken

    def room(self, num_cells: int, offset: int) -> int:
        """The first of `num_cells` cells to take: in the longest free run, at a cell whose place is `offset`.

        The place of a cell is its number modulo the alignment. It leaves half of the remaining run free for
        the sequence that grows in front of it. Another cell is returned only if no run has such a cell.
        """
        free = np.flatnonzero(self._owners == 0)
        assert len(free), f"{num_cells} more cells are needed and none is free"
        firsts = np.flatnonzero(np.diff(free, prepend=-2) != 1)
        starts, lengths = free[firsts], np.diff(firsts, append=len(free))
        skipped = (offset - starts) % self.alignment
        longest = (lengths - skipped).argmax()
        spare = int(lengths[longest] - skipped[longest]) - num_cells
        if spare <= -num_cells:
            return int(starts[lengths.argmax()])
        return int(starts[longest] + skipped[longest]) + max(0, spare) // 2 // self.alignment * self.alignment
