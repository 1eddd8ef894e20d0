"""`CachePicture`: which cells of a loaded model's cache hold which tokens, as typed values.

It says where tokens are and never which ones they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chaski.kvcache import Extent, LeafCache
from chaski.runner.engine.engine import Engine

__all__ = ["CacheKind", "CachePicture", "CacheSlot", "CellRun", "DescribeCache", "cache_picture"]


@dataclass(frozen=True, slots=True)
class DescribeCache:
    """Answered by `CachePicture`."""


@dataclass(frozen=True, slots=True)
class CellRun:
    """Neighbouring cells with neighbouring tokens of a sequence, from a cell and a position on.

    Of states, a run is one cell, and `position` is the number of tokens that the state stands for.
    """

    sequence: int
    cell: int
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class CacheKind:
    """The cells of all layers of one kind. A cell in several runs is shared; one in none is free."""

    kind: str
    is_state: bool
    cells: int
    runs: tuple[CellRun, ...]


@dataclass(frozen=True, slots=True)
class CacheSlot:
    """A sequence of the cache: its tokens, and whether a request is being computed in it.

    shifted_at  the position from which on tokens were moved when the context was full; None for none
    """

    tokens: int
    is_running: bool
    shifted_at: int | None


@dataclass(frozen=True, slots=True)
class CachePicture:
    """The cache between two batches."""

    slots: tuple[CacheSlot, ...]
    kinds: tuple[CacheKind, ...]


def cache_picture(engine: Engine) -> CachePicture:
    """Return what all cells of an engine hold; the batch that is being computed is waited for."""
    found: list[CachePicture] = []

    def look() -> None:
        slots = engine.prompt_cache.slots
        lengths = [len(slot.tokens) for slot in slots]
        shown = tuple(CacheSlot(len(slot.tokens), not slot.is_free, slot.shifted_at) for slot in slots)
        kinds = (
            CacheKind(leaf.kind, leaf.is_state, leaf.num_cells, tuple(_runs(leaf, lengths)))
            for leaf in engine.cache.leaves
        )
        found.append(CachePicture(shown, tuple(kinds)))

    engine.between_batches(look)
    return found[0]


def _runs(leaf: LeafCache, lengths: list[int]) -> Iterator[CellRun]:
    for sequence, length in enumerate(lengths):
        for extent in _held(leaf, sequence, length):
            ends = np.append(np.flatnonzero(np.diff(extent.cells) != 1) + 1, len(extent.cells)).tolist()
            begin = 0
            for end in ends:
                yield CellRun(sequence, int(extent.cells[begin]), extent.begin + begin, end - begin)
                begin = end


def _held(leaf: LeafCache, sequence: int, length: int) -> Iterator[Extent]:
    """Yield all extents of a sequence; of its states each, from the newest to the oldest."""
    if not leaf.is_state:
        yield from leaf.held(sequence, 0, length)
        return
    while held := leaf.held(sequence, -1, length):
        yield held[-1]
        length = held[-1].end - 1
