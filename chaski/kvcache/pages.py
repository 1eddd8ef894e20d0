"""Cells in whole pages: a page has tokens of one sequence, at their places.

The token at position p of a sequence lies in cell p % page of a page. Sequences share whole pages only. So a
sequence cannot resume inside a page if another sequence owns later cells of that page: the tokens before them
in the page are computed again.

Pages serve backends that ask for them, see `chaski.ml.backend.CacheConfig`; none of chaski's own does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chaski.kvcache.table import Table

__all__ = ["PagedTable"]


class PagedTable(Table):
    """A `Table` whose sequences grow by pages of `page` cells."""

    def __init__(self, sequences: int, capacity: int, num_cells: int, page: int) -> None:
        super().__init__(sequences, capacity, num_cells, page)
        self._page = page

    def append(self, counts: Mapping[int, int]) -> None:
        page = self._page
        for sequence, count in counts.items():
            row, begin = self._rows[sequence], self.lengths[sequence]
            end = begin + count
            while begin < end:
                offset = begin % page
                goes_on = offset and begin > self.firsts[sequence]
                cell = int(row[begin - 1]) + 1 if goes_on else self._fresh(sequence, begin) + offset
                num_cells = min(page - offset, end - begin)
                taken = self.cells.take(cell, num_cells)
                assert taken == num_cells, "another sequence writes into this page"
                row[begin : begin + taken] = np.arange(cell, cell + taken)
                begin += taken
                self.lengths[sequence] = begin

    def _fresh(self, sequence: int, begin: int) -> int:
        """The first cell of a free page: the next one after the sequence, or from its home on."""
        is_empty = begin == self.firsts[sequence]
        near = self._spacing * sequence if is_empty else int(self._rows[sequence, begin - 1]) + 1
        pages = self.cells.free_pages(self._page)
        assert len(pages), "a page is needed and none is free"
        behind = np.searchsorted(pages, near // self._page)
        return int(pages[behind % len(pages)]) * self._page

    def room(self, num_sequences: int) -> int:
        # Each of them may begin or end in the middle of a page.
        return (len(self.cells.free_pages(self._page)) - num_sequences) * self._page

    def is_open(self, sequence: int, position: int) -> bool:
        offset = position % self._page
        if offset == 0 or position <= self.firsts[sequence]:
            return True
        cell, num_cells = int(self._rows[sequence, position - 1]) + 1, self._page - offset
        num_own = max(0, min(self.lengths[sequence] - position, num_cells))
        return self.cells.are_owned(cell, num_own, 1) and self.cells.are_owned(
            cell + num_own, num_cells - num_own, 0
        )

    def floor(self, position: int) -> int:
        return position - position % self._page

    def kept_in_page(self, sequence: int, position: int) -> int:
        return min(position % self._page, max(position - self.firsts[sequence], 0))
