"""The causal cache: every token sees its own sequence up to itself, or a window or chunk of it.

A cell is one row of every layer's key and value storage. A sequence is the table of its cells by position;
several sequences may list the same cell (a shared prefix). What is done for a batch is done with arrays, so
that the time it takes hardly depends on how many tokens, sequences and cells there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chaski.errors import CacheFullError, NotSupportedError
from chaski.kvcache.base import KVShape, KVTypes
from chaski.kvcache.cells import Cells
from chaski.kvcache.reach import Reach
from chaski.kvcache.rotation import Rotation
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, Mask, Tensor

if TYPE_CHECKING:
    from chaski.model.input import Batch

__all__ = ["CausalCache"]

I32 = npt.NDArray[np.int32]

_EVERYTHING = Reach()


class CausalCache:
    """Keys and values of `sequences` sequences of up to `capacity` tokens, for every layer in `shapes`.

    A batch has up to `max_batch` tokens. Where `reach` bounds what is kept, there are cells for that of every
    sequence, and for one batch. Before each batch all sequences are trimmed to it, the idle ones too, so that
    there is a free cell for every token while each sequence stays within its capacity.
    """

    def __init__(
        self,
        backend: Backend,
        shapes: Sequence[KVShape],
        sequences: int,
        capacity: int,
        types: KVTypes,
        *,
        max_batch: int,
        reach: Reach = _EVERYTHING,
    ) -> None:
        self.capacity = capacity
        self._reach = reach
        self._kept = reach.kept(capacity)
        self._max_batch = max_batch
        num_cells = sequences * capacity if self._kept is None else sequences * self._kept + max_batch
        self._layers = [
            (
                backend.kv_buffer(num_cells, shape.heads, shape.key_size, types.keys),
                backend.kv_buffer(num_cells, shape.heads, shape.value_size, types.values),
            )
            for shape in shapes
        ]
        self._rotation = _rotation(backend, shapes, [keys for keys, _ in self._layers], max_batch)
        self._cells = Cells(num_cells)
        # The cell of each position. Of a sequence the positions from `firsts` up to `lengths` are stored.
        self._table = np.zeros((sequences, capacity), np.int32)
        self._firsts, self._lengths = np.zeros((2, sequences), np.int32)
        self._homes = np.arange(sequences, dtype=np.int32) * (num_cells // sequences)

    @property
    def num_cells(self) -> int:
        """Rows of every layer's storage."""
        return self._cells.count

    @property
    def num_free(self) -> int:
        """How many of them hold nothing."""
        return self._cells.num_free

    def record(self, graph: Graph, tokens: Dim, prefix: str = "") -> Sequence[CausalLayer]:
        cells = graph.input(f"{prefix}cells", (tokens,), DType.I32)
        history = graph.input(f"{prefix}history", (Dim(f"{prefix}history", self._max_history()),), DType.I32)
        spans = graph.input(f"{prefix}spans", (tokens, 3), DType.I32)
        mask = Mask(history, spans)
        return [CausalLayer(keys, values, cells, mask) for keys, values in self._layers]

    def length(self, sequence: int) -> int:
        return int(self._lengths[sequence])

    def start_forward(self, batch: Batch) -> Mapping[str, I32]:
        counts = np.bincount(batch.sequences, minlength=len(self._lengths)).astype(np.int32)
        ids = np.flatnonzero(counts)
        self._check_batch(batch, ids, counts)
        self._trim()
        cells = self._cells.take(self._wanted(batch), batch.sequences)
        self._table[batch.sequences, batch.positions] = cells
        begins = self._reach.first_visible(self._lengths[ids])
        self._lengths += counts
        ends = self._lengths[ids]
        # Position p of a sequence stands in the history at offset + p.
        offsets = np.zeros_like(counts)
        offsets[ids] = np.cumsum(ends - begins) - ends
        spans = self._spans(batch, offsets[batch.sequences])
        return {"cells": cells, "history": self._listed(ids, begins, ends), "spans": spans}

    def undo_forward(self, batch: Batch) -> None:
        self._cells.release(self._table[batch.sequences, batch.positions])
        self._lengths -= np.bincount(batch.sequences, minlength=len(self._lengths)).astype(np.int32)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        if source == target:
            self.remove(target, length)
            return
        self.remove(target, 0)
        length = self.resumable(source, length)
        first = min(self._firsts[source], length)
        shared = self._table[source, first:length]
        self._cells.share(shared)
        self._table[target, first:length] = shared
        self._firsts[target], self._lengths[target] = first, length

    def can_resume(self, sequence: int, position: int) -> bool:
        return position <= self.length(sequence) and self._is_visible(position, int(self._firsts[sequence]))

    def resumable(self, sequence: int, position: int) -> int:
        position = min(position, self.length(sequence))
        return position if self.can_resume(sequence, position) else self._reach.last_start(position)

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        first, length = int(self._firsts[sequence]), int(self._lengths[sequence])
        if end is None or end >= length or begin >= end:
            return
        what = f"sequence {sequence}: tokens {begin} to {end} of {length} cannot be removed"
        if self._rotation is None:
            raise NotSupportedError(f"{what}: the model's keys cannot be moved to other positions")
        if self._cells.are_shared(self._table[sequence, max(end, first) : length]):
            raise NotSupportedError(f"{what}: tokens behind them are shared with other sequences")
        if not self._is_visible(length - (end - begin), _first_after(first, begin, end)):
            raise NotSupportedError(f"{what}: what the next token would see is not all there any more")

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        self.check_remove(sequence, begin, end)
        length = int(self._lengths[sequence])
        if end is None or end >= length:
            self._remove_tail(sequence, begin)
        elif begin < end:
            self._remove_middle(sequence, begin, end)

    def close(self) -> None:
        self._layers = []
        self._rotation = None

    def _remove_tail(self, sequence: int, begin: int) -> None:
        first, length = int(self._firsts[sequence]), int(self._lengths[sequence])
        if begin >= length:
            return
        begin = self.resumable(sequence, begin)
        self._cells.release(self._table[sequence, max(begin, first) : length])
        self._firsts[sequence], self._lengths[sequence] = min(first, begin), begin

    def _remove_middle(self, sequence: int, begin: int, end: int) -> None:
        """Let go of the tokens, and turn those behind them to their new positions."""
        assert self._rotation is not None
        first, length = int(self._firsts[sequence]), int(self._lengths[sequence])
        distance = end - begin
        cells = self._table[sequence]
        moved = cells[max(end, first) : length]
        self._rotation.move_down(moved, distance)
        self._cells.release(cells[max(begin, first) : max(end, first)])
        cells[max(end, first) - distance : length - distance] = moved
        self._firsts[sequence] = _first_after(first, begin, end)
        self._lengths[sequence] = length - distance

    def _is_visible(self, position: int, first: int) -> bool:
        """Whether all that a token at `position` sees before itself is stored, from `first` on."""
        visible = int(self._reach.first_visible(np.array(position, np.int32)))
        return first <= visible or visible == position

    def _max_history(self) -> int:
        """The longest list of visible cells: shared cells are listed once for each sequence."""
        sequences, capacity = self._table.shape
        visible = self._reach.visible
        everything = sequences * capacity
        return everything if visible is None else min(everything, sequences * (visible - 1) + self._max_batch)

    def _check_batch(self, batch: Batch, ids: npt.NDArray[np.intp], counts: I32) -> None:
        assert len(batch.tokens) <= self._max_batch, f"{len(batch.tokens)} tokens in a batch"
        ends = np.zeros_like(counts)
        ends[batch.sequences] = batch.positions + 1  # the last one of a sequence stays
        after = self._lengths[ids] + counts[ids]
        assert (ends[ids] == after).all(), f"sequences {ids} end at {ends[ids]}, not at {after}"
        assert batch.ends is None or (batch.ends <= ends[batch.sequences]).all(), (
            "a group is not in one batch"
        )
        if (after > self.capacity).any():
            sequence = ids[after > self.capacity][0]
            raise CacheFullError(
                f"sequence {sequence} holds {self._lengths[sequence]} tokens and {counts[sequence]} more do "
                f"not fit into its {self.capacity}"
            )

    def _trim(self) -> None:
        """Let go of what nobody may resume from any more."""
        if self._kept is None:
            return
        ends = self._lengths - np.int32(self._kept)
        ids = np.flatnonzero(ends > self._firsts)
        if len(ids):
            self._cells.release(self._listed(ids, self._firsts[ids], ends[ids]))
            self._firsts[ids] = ends[ids]

    def _wanted(self, batch: Batch) -> I32:
        """The cells behind the last one of each sequence, or at its home when it has none."""
        last = self._table[np.arange(len(self._lengths)), np.maximum(self._lengths - 1, 0)]
        tails = np.where(self._lengths > self._firsts, last + 1, self._homes)
        wanted: I32 = (tails - self._lengths)[batch.sequences] + batch.positions
        return wanted % np.int32(self._cells.count)

    def _spans(self, batch: Batch, offsets: I32) -> I32:
        first = self._reach.first_visible(batch.positions)
        spans = np.empty((len(batch.positions), 3), np.int32)
        spans[:, 0] = offsets + first
        spans[:, 1] = offsets + (batch.positions + 1 if batch.ends is None else batch.ends)
        spans[:, 2] = first
        return spans

    def _listed(self, ids: npt.NDArray[np.intp], begins: I32, ends: I32) -> I32:
        """The cells of some sequences, each between two positions, one sequence after the other."""
        bounds = zip(ids.tolist(), begins.tolist(), ends.tolist(), strict=True)
        parts = [self._table[sequence, begin:end] for sequence, begin, end in bounds]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _first_after(first: int, begin: int, end: int) -> int:
    """The lowest stored position, which was `first`, when the positions from begin to end are gone."""
    return first if first <= begin else max(first, end) - (end - begin)


def _rotation(
    backend: Backend, shapes: Sequence[KVShape], keys: Sequence[KVBuffer], max_cells: int
) -> Rotation | None:
    """How keys are moved, if those of every layer can be."""
    turned = [(buffer, s.rotation) for buffer, s in zip(keys, shapes, strict=True) if s.rotation is not None]
    return Rotation(backend, turned, max_cells) if len(turned) == len(keys) else None


@dataclass(frozen=True, slots=True)
class CausalLayer:
    """One layer's face of the cache, while a graph is recorded."""

    keys: KVBuffer
    values: KVBuffer
    cells: Tensor
    mask: Mask

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Mask]:
        return ops.store(k, self.cells, self.keys), ops.store(v, self.cells, self.values), self.mask
