"""The causal cache: every token sees its own sequence up to itself.

A cell is one row of every layer's key and value storage. A sequence is the list of its cells in order of
position, 0, 1, 2 …; several sequences may list the same cell (a shared prefix), and a cell is free when none
does. Lists and counts are NumPy arrays; a batch of one and a batch of many take the same path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chaski.errors import CacheFullError, NotSupportedError
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, Mask, Tensor

if TYPE_CHECKING:
    from chaski.model.input import Batch

__all__ = ["CausalCache", "KVShape"]

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KVShape:
    """The key/value heads of one layer and their sizes."""

    heads: int
    key_size: int
    value_size: int


class CausalCache:
    """Keys and values of `sequences` sequences of up to `capacity` tokens, for every layer in `shapes`."""

    def __init__(
        self, backend: Backend, shapes: Sequence[KVShape], sequences: int, capacity: int, dtype: DType
    ) -> None:
        self.capacity = capacity
        self._num_cells = sequences * capacity
        self._layers = [
            (
                backend.kv_buffer(self._num_cells, shape.heads, shape.key_size, dtype),
                backend.kv_buffer(self._num_cells, shape.heads, shape.value_size, dtype),
            )
            for shape in shapes
        ]
        self._owners = np.zeros(self._num_cells, np.int32)
        self._cells = np.zeros((sequences, capacity), np.int32)
        self._lengths = [0] * sequences

    def record(self, graph: Graph, tokens: Dim) -> Sequence[CausalLayer]:
        cells = graph.input("cells", (tokens,), DType.I32)
        # A history is at most what all sequences can list; shared cells are listed once for each.
        history = graph.input("history", (Dim("history", self._num_cells),), DType.I32)
        spans = graph.input("spans", (tokens, 3), DType.I32)
        mask = Mask(history, spans)
        return [CausalLayer(keys, values, cells, mask) for keys, values in self._layers]

    def length(self, sequence: int) -> int:
        """How many tokens of `sequence` are stored."""
        return self._lengths[sequence]

    def start_forward(self, batch: Batch) -> Mapping[str, I32]:
        ids, first, counts = np.unique(batch.sequences, return_index=True, return_counts=True)
        self._check_room(ids, counts, batch.positions[first])
        cells = np.empty_like(batch.tokens)
        spans = np.zeros((len(batch.tokens), 3), np.int32)
        histories = []
        offset = 0
        for sequence, count in zip(ids.tolist(), counts.tolist(), strict=True):
            rows = batch.sequences == sequence
            cells[rows] = self._append(sequence, count)
            spans[rows, 0] = offset
            spans[rows, 1] = offset + batch.positions[rows] + 1
            histories.append(self._cells[sequence, : self._lengths[sequence]])
            offset += self._lengths[sequence]
        history = histories[0] if len(histories) == 1 else np.concatenate(histories)
        return {"cells": cells, "history": history, "spans": spans}

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        if source == target:
            self.remove(target, length)
            return
        self.remove(target, 0)
        shared = self._cells[source, :length]
        self._cells[target, :length] = shared
        self._owners[shared] += 1
        self._lengths[target] = length

    def can_resume(self, sequence: int, position: int) -> bool:
        return position <= self._lengths[sequence]

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        length = self._lengths[sequence]
        if end is not None and end < length and begin < end:
            raise NotSupportedError(
                f"sequence {sequence}: tokens {begin} to {end} cannot be removed from the middle; "
                "remove the tail and evaluate it again"
            )
        if begin < length:
            self._owners[self._cells[sequence, begin:length]] -= 1
            self._lengths[sequence] = begin

    def close(self) -> None:
        self._layers = []

    def _check_room(self, ids: I32, counts: npt.NDArray[np.intp], starts: I32) -> None:
        for sequence, count, start in zip(ids.tolist(), counts.tolist(), starts.tolist(), strict=True):
            length = self._lengths[sequence]
            assert start == length, f"sequence {sequence} continues at {length}, not at {start}"
            if length + count > self.capacity:
                raise CacheFullError(
                    f"sequence {sequence} holds {length} tokens and {count} more do not fit "
                    f"into its {self.capacity} cells"
                )

    def _append(self, sequence: int, count: int) -> I32:
        """Take `count` free cells for the end of a sequence, next to its last one where they are free."""
        length = self._lengths[sequence]
        start = int(self._cells[sequence, length - 1]) + 1 if length else sequence * self.capacity
        cells = np.arange(start, start + count, dtype=np.int32)
        if start + count > self._num_cells or self._owners[start : start + count].any():
            free = np.flatnonzero(self._owners == 0)
            following = np.searchsorted(free, start)
            cells = np.roll(free, -following)[:count].astype(np.int32)
        self._owners[cells] = 1
        self._cells[sequence, length : length + count] = cells
        self._lengths[sequence] = length + count
        return cells


@dataclass(frozen=True, slots=True)
class CausalLayer:
    """One layer's face of the cache, while a graph is recorded."""

    keys: KVBuffer
    values: KVBuffer
    cells: Tensor
    mask: Mask

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Mask]:
        return ops.store(k, self.cells, self.keys), ops.store(v, self.cells, self.values), self.mask
