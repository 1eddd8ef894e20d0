"""Rows of a batch's outputs, which stay on the computing device until they are read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chaski.ml.plan import Launch

__all__ = ["HIDDEN", "OutputRow", "OutputRows"]

F32 = npt.NDArray[np.float32]

HIDDEN = "hidden"
"""The name of the graph output with the hidden states of output rows, for a model that proposes tokens."""


class OutputRow:
    """One row, of `size` elements."""

    __slots__ = ("_index", "_launch", "size")

    def __init__(self, launch: Launch, index: int, size: int) -> None:
        self._launch = launch
        self._index = index
        self.size = size

    def fetch(self) -> F32:
        """Return the elements (size,): a view that a later batch may overwrite."""
        row: F32 = self._launch.rows("outputs", self._index, self._index + 1)[0]
        return row

    def hidden(self) -> F32:
        """Return the hidden state that the row came from, as `fetch` does; only for models that propose."""
        row: F32 = self._launch.rows(HIDDEN, self._index, self._index + 1)[0]
        return row


class OutputRows:
    """The rows of a launch from `begin` to `end`, each of `size` elements."""

    __slots__ = ("_begin", "_end", "_launch", "_size")

    def __init__(self, launch: Launch, begin: int, end: int, size: int) -> None:
        self._launch = launch
        self._begin = begin
        self._end = end
        self._size = size

    def __len__(self) -> int:
        return self._end - self._begin

    def part(self, begin: int, end: int) -> OutputRows:
        """Return the rows from `begin` to `end` of these."""
        return OutputRows(self._launch, self._begin + begin, self._begin + end, self._size)

    def row(self, index: int) -> OutputRow:
        return OutputRow(self._launch, self._begin + index, self._size)

    def fetch(self) -> F32:
        """Return all rows (n, size): a view that a later batch may overwrite."""
        return self._launch.rows("outputs", self._begin, self._end)
