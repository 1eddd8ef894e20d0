"""`CachePicture`: which tokens the cells of a loaded model's cache contain, as typed values.

It shows where tokens are stored, but not which tokens they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.chat.sendable import Sendable
from chaski.kvcache import Extent, LeafCache
from chaski.runner.engine.engine import Engine

__all__ = ["CacheKind", "CachePicture", "CacheSlot", "DescribeCache", "cache_picture"]


class DescribeCache(Sendable, frozen=True):
    """Ask for the contents of the cache. Answered by `CachePicture`."""


class CacheKind(Struct, frozen=True, eq=False):
    """The cells of all layers of one kind. A cell in several runs is shared; a cell in no run is free.

    `runs` (runs, 5) int32 has rows of sequence, cell, position, count and step: `count` tokens of the
    sequence at neighbouring positions from `position` on, in cells from `cell` on that are `step` apart.
    Cells of sequences that grow together alternate, and their steps are the number of these sequences. For
    states, a run is one cell, and `position` is the number of tokens in the state.
    """

    kind: str
    is_state: bool
    cells: int
    runs: np.ndarray[Any, np.dtype[np.int32]]

    def held_by(self, sequences: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Return the cells of some sequences (cells,). A cell shared by several of them is listed several
        times.
        """
        _, first, _, count, step = self.runs[np.isin(self.runs[:, 0], sequences)].T
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        cells: npt.NDArray[np.int32] = np.repeat(first, count) + (within * np.repeat(step, count))
        return cells.astype(np.int32)


class CacheSlot(Struct, frozen=True):
    """A sequence of the cache: its tokens, and whether a request is being computed in it.

    shifted_at  the position from which on tokens were moved when the context was full; None for none
    """

    tokens: int
    is_running: bool
    shifted_at: int | None


class CachePicture(Sendable, frozen=True, eq=False):
    """The cache between two batches."""

    slots: tuple[CacheSlot, ...]
    kinds: tuple[CacheKind, ...]


def cache_picture(engine: Engine) -> CachePicture:
    """Return the contents of all cells of an engine, after the current batch has ended."""
    found: list[CachePicture] = []

    def look() -> None:
        slots = engine.prefix_cache.slots
        lengths = [len(slot.tokens) for slot in slots]
        shown = tuple(CacheSlot(len(slot.tokens), not slot.is_free, slot.shifted_at) for slot in slots)
        kinds = (
            CacheKind(leaf.kind, leaf.is_state, leaf.num_cells, _runs(leaf, lengths))
            for leaf in engine.cache.leaves
        )
        found.append(CachePicture(shown, tuple(kinds)))

    engine.between_batches(look)
    return found[0]


def _runs(leaf: LeafCache, lengths: list[int]) -> npt.NDArray[np.int32]:
    """Return the runs of all sequences in the form of `CacheKind.runs`."""
    found = [np.zeros((0, 5), np.int32)]
    for sequence, length in enumerate(lengths):
        for extent in _held(leaf, sequence, length):
            begins = _begins(extent.cells)
            counts = np.diff(begins, append=len(extent.cells))
            steps = np.where(counts > 1, np.diff(extent.cells, append=0)[begins], 1)
            sequences = np.full(len(begins), sequence)
            columns = (sequences, extent.cells[begins], extent.begin + begins, counts, steps)
            found.append(np.stack(columns, 1).astype(np.int32))
    return np.concatenate(found)


def _begins(cells: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    """Return the indices (runs,) in `cells` (tokens,) at which runs begin.

    A run begins at the first cell, and wherever the step from the previous cell changes.

    The step between two runs belongs to neither of them, so every second of consecutive changes begins a run.
    """
    steps = np.diff(cells)
    places = np.arange(len(steps))
    is_change = np.diff(steps, prepend=steps[:1]) != 0
    since = places - np.maximum.accumulate(np.where(is_change, -1, places))
    return np.append(0, places[is_change & (since % 2 == 1)] + 1)


def _held(leaf: LeafCache, sequence: int, length: int) -> Iterator[Extent]:
    """Yield all extents of a sequence, and each of its states from the newest to the oldest."""
    if not leaf.is_state:
        yield from leaf.held(sequence, 0, length)
        return
    while held := leaf.held(sequence, -1, length):
        yield held[-1]
        length = held[-1].end - 1
