"""The cells of every sequence by position: how sequences grow, share, and shrink at either end.

Plain numbers for single entries, arrays for moved ones: a decode step looks at one cell a sequence, and runs
when none of this is in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from chaski.kvcache.cells import Cells

__all__ = ["Table", "first_without"]

I32 = npt.NDArray[np.int32]
_NOTHING: Mapping[int, int] = {}


class Table:
    """Sequences of up to `capacity` tokens over `num_cells` cells.

    Of a sequence the positions from `firsts` up to `lengths` are stored, and those before are not any more.
    """

    def __init__(self, sequences: int, capacity: int, num_cells: int, alignment: int = 1) -> None:
        self.cells = Cells(num_cells, alignment)
        self.firsts = [0] * sequences
        self.lengths = [0] * sequences
        self._rows = np.zeros((sequences, capacity), np.int32)
        # The same numbers, and lists of them: quicker to reach for a few of them than arrays.
        self._views = [row.data for row in self._rows]
        self._numbers = np.arange(num_cells, dtype=np.int32).data
        self._listed = np.zeros(sequences * capacity, np.int32)
        self._listed_view = self._listed.data
        self._spacing = num_cells // sequences // alignment * alignment

    def stored(self, sequence: int, begin: int = 0, end: int | None = None) -> I32:
        """The cells of the stored tokens at positions begin to end (None: to the end of the sequence)."""
        length = self.lengths[sequence]
        stop = length if end is None else min(end, length)
        return self._rows[sequence, max(begin, self.firsts[sequence]) : stop]

    def append(self, counts: Mapping[int, int]) -> None:
        """Take cells for more tokens of sequences: after the last one, or at the home of an empty one."""
        cells, numbers, alignment = self.cells, self._numbers, self.cells.alignment
        for sequence, count in counts.items():
            row, begin = self._views[sequence], self.lengths[sequence]
            is_empty = begin == self.firsts[sequence]
            cell = self._spacing * sequence if is_empty else row[begin - 1] + 1
            self.lengths[sequence] = end = begin + count
            while begin < end:
                # After the last cell comes the first one, so that a window wraps around its storage.
                cell = 0 if cell == cells.count else cell
                taken = 0 if (cell - begin) % alignment else cells.take(cell, end - begin)
                if not taken:
                    cell = cells.room(end - begin, begin % alignment)
                    taken = cells.take(cell, end - begin)
                row[begin : begin + taken] = numbers[cell : cell + taken]
                begin, cell = begin + taken, cell + taken

    def room(self, num_sequences: int) -> int:
        """Cells that a batch of that many sequences can count on."""
        return self.cells.num_free

    def is_open(self, sequence: int, position: int) -> bool:
        """Return whether the sequence may continue at `position` if others may share the tokens before it."""
        return True

    def floor(self, position: int) -> int:
        """The highest position, up to this one, from which other sequences may continue."""
        return position

    def kept_in_page(self, sequence: int, position: int) -> int:
        """The number of tokens before a position that have to be in one page with it."""
        return 0

    def cells_of(self, sequences: Sequence[int], positions: Sequence[int]) -> list[int]:
        """The cell of each token."""
        views = self._views
        return [views[sequence][position] for sequence, position in zip(sequences, positions, strict=True)]

    def listed(self, begins: Iterable[tuple[int, int]]) -> tuple[I32, dict[int, int]]:
        """The cells of (sequence, begin) pairs, each from that position on, one sequence after the other.

        Also the offset of each sequence: its position p is entry offset + p. The list is overwritten by the
        next one.
        """
        offsets, size = {}, 0
        for sequence, begin in begins:
            end = self.lengths[sequence]
            self._listed_view[size : size + end - begin] = self._views[sequence][begin:end]
            offsets[sequence] = size - begin
            size += end - begin
        return self._listed[:size], offsets

    def share(self, source: int, target: int, length: int) -> None:
        """Give the empty sequence `target` the first `length` tokens of `source` too."""
        first = min(self.firsts[source], length)
        shared = self.stored(source, 0, length)
        self.cells.share(shared)
        self._rows[target, first:length] = shared
        self.firsts[target], self.lengths[target] = first, length

    def drop_tail(self, sequence: int, begin: int) -> None:
        """Release the tokens from position `begin` on."""
        self.cells.release(self.stored(sequence, begin))
        self.firsts[sequence] = min(self.firsts[sequence], begin)
        self.lengths[sequence] = begin

    def skip(self, sequence: int, position: int) -> None:
        """Release all tokens of a sequence, which continues at `position` with nothing stored before it."""
        self.drop_tail(sequence, 0)
        self.firsts[sequence] = self.lengths[sequence] = position

    def drop_middle(self, sequence: int, begin: int, end: int) -> None:
        """Release the tokens from position `begin` to `end`; those after them move down."""
        self.cells.release(self.stored(sequence, begin, end))
        moved = self.stored(sequence, end)
        length = self.lengths[sequence] - (end - begin)
        self._rows[sequence, length - len(moved) : length] = moved.copy()
        self.firsts[sequence] = first_without(self.firsts[sequence], begin, end)
        self.lengths[sequence] = length

    def trim(self, kept: int, coming: Mapping[int, int] = _NOTHING) -> None:
        """Release all but the last `kept` tokens of every sequence, the number of `coming` ones included.

        At most `kept` tokens of a sequence may come.
        """
        for sequence, length in enumerate(self.lengths):
            first = length + coming.get(sequence, 0) - kept
            if first > self.firsts[sequence]:
                self.cells.release(self.stored(sequence, 0, first))
                self.firsts[sequence] = first

    def forget(self, sequences: Iterable[int]) -> None:
        """Empty these sequences, and count the owners of cells again from the lists of the others."""
        for sequence in sequences:
            self.firsts[sequence] = self.lengths[sequence] = 0
        self.cells.recount(self.stored(sequence) for sequence in range(len(self.lengths)))


def first_without(first: int, begin: int, end: int) -> int:
    """The lowest stored position of a sequence stored from `first` on, were `begin` to `end` gone."""
    return first if first <= begin else max(first, end) - (end - begin)
