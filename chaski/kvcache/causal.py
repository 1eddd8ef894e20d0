"""The causal cache: every token sees its own sequence up to itself, or a window or chunk of it.

A cell is one row of every layer's key and value storage. A sequence is the table of its cells by position;
several sequences may list the same cell (a shared prefix). The work for a batch uses plain numbers for each
run of tokens of one sequence, and arrays for all that exists once for each token or cell.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import CacheFullError, NotSupportedError
from chaski.kvcache.attention_span import AttentionSpan
from chaski.kvcache.base import KVShape, KVTypes, kv_buffers, update_buffers
from chaski.kvcache.batch import Batch
from chaski.kvcache.extents import Extent, Span, covered
from chaski.kvcache.key_shift import CellCopy, KeyShift
from chaski.kvcache.masks import MaskInputs
from chaski.kvcache.pages import PagedTable
from chaski.kvcache.table import Table, first_without
from chaski.ml import ops
from chaski.ml.backend import Backend, MaskForm
from chaski.ml.graph import AnyMask, Dim, DType, Graph, KVBuffer, Tensor

__all__ = ["CausalCache", "StoredLayer"]

I32 = npt.NDArray[np.int32]

_EVERYTHING = AttentionSpan()
_ROOM = 256  # places of a block of cells


class CausalCache:
    """Keys and values of `sequences` sequences of up to `capacity` tokens, for every layer in `shapes`.

    A batch has up to `max_batch` tokens. Where `span` bounds what is kept, there are cells for the kept
    tokens of every sequence, and for one batch. When a batch finds no room all sequences are trimmed to it,
    the idle ones too, so that there is a free cell for every token while each sequence stays within its
    capacity.
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
        span: AttentionSpan = _EVERYTHING,
        layers: Sequence[int] | None = None,
    ) -> None:
        """`layers` are the numbers of the layers in the model; None for 0, 1, ..."""
        self.capacity = capacity
        self._span = span
        self._kept = span.kept(capacity)
        self._max_batch = max_batch
        self._config = backend.cache_config
        num_cells = self._config.padded(span.num_cells(sequences, capacity, max_batch), sequences)
        self._layers = kv_buffers(backend, shapes, num_cells, types, layers)
        self._value_sizes = [shape.value_size for shape in shapes]
        self._key_shift = _key_shift(backend, shapes, [keys for keys, *_ in self._layers], max_batch)
        page, alignment = self._config.page, self._config.alignment
        buffers = [buffer for layer in self._layers for buffer in layer]
        self.rows = backend.cell_rows(buffers)
        has_pages = page > 1 and self._key_shift is not None
        self._copy = CellCopy(backend, buffers, page) if has_pages else None
        self._table = (
            PagedTable(sequences, capacity, num_cells, page)
            if page > 1
            else Table(sequences, capacity, num_cells, alignment)
        )
        self._masks = MaskInputs(self._config, num_cells, sequences, capacity)

    is_state = False

    @property
    def kind(self) -> str:
        """The tokens that are kept, for people."""
        return "all tokens" if self._kept is None else f"the last {self._kept} tokens"

    @property
    def num_cells(self) -> int:
        """Rows of every layer's storage."""
        return self._table.cells.count

    @property
    def num_free(self) -> int:
        """The number of cells that hold nothing."""
        return self._table.cells.num_free

    @property
    def unused_bytes(self) -> int:
        """The bytes of all cells that no sequence has ever used."""
        return self.rows.num_bytes(_ROOM) // _ROOM * self._table.cells.num_unused

    def cells(self, sequence: int) -> I32:
        """The cells of a sequence's stored tokens, in order of position."""
        return self._table.stored(sequence)

    def record(self, graph: Graph, tokens: Dim, prefix: str = "") -> Sequence[CausalLayer]:
        cells = graph.input(f"{prefix}cells", (tokens,), DType.I32)
        mask = self._masks.declare(graph, tokens, self._max_history(), prefix)
        return [
            CausalLayer(buffers, size, cells, mask)
            for buffers, size in zip(self._layers, self._value_sizes, strict=True)
        ]

    def record_stored(self, graph: Graph, tokens: Dim, prefix: str = "") -> Sequence[StoredLayer]:
        """Declare inputs as `record` does, for a graph that stores nothing -> an interface for each layer."""
        mask = self._masks.declare(graph, tokens, self._max_history(), prefix)
        found = []
        for buffers, size in zip(self._layers, self._value_sizes, strict=True):
            keys, values = ops.stored(graph, buffers[0]), ops.stored(graph, buffers[-1], size)
            found.append(StoredLayer(keys, values, mask))
        return found

    def seen_next(self, sequences: I32) -> Mapping[str, npt.NDArray[Any]]:
        """Return the inputs of `record_stored` for a token of each of these sequences.

        It sees what the next token of its sequence will see before itself.
        """
        numbers: list[int] = sequences.tolist()
        ends = [self._table.lengths[sequence] for sequence in numbers]
        first = self._span.first_visible(ends)
        history, offsets = self._table.listed(zip(numbers, first, strict=True))
        rows = zip(numbers, first, ends, strict=True)
        spans = [(offsets[sequence] + low, offsets[sequence] + end, low) for sequence, low, end in rows]
        return self._masks.values(history, np.array(spans, np.int32), sequences)

    num_droppable = sys.maxsize

    @property
    def overwrites(self) -> bool:
        return self._kept is not None

    def length(self, sequence: int) -> int:
        return self._table.lengths[sequence]

    def start_forward(self, batch: Batch) -> Mapping[str, I32]:
        sequences: list[int] = batch.sequences.tolist()
        positions: list[int] = batch.positions.tolist()
        counts: dict[int, int] = {}
        for sequence in sequences:
            counts[sequence] = counts.get(sequence, 0) + 1
        ends = self._span.visible_ends(positions, _group_ends(batch, positions))
        self._check_batch(batch, dict(zip(sequences, positions, strict=True)), counts)
        if self._kept is not None and self._table.room(len(counts)) < len(sequences):
            self._table.trim(self._kept)
        begins = self._span.first_visible([self._table.lengths[sequence] for sequence in counts])
        self._table.append(counts)
        history, offsets = self._table.listed(zip(counts, begins, strict=True))
        cells = self._table.cells_of(sequences, positions)
        first = self._span.first_visible(positions)
        flat: list[int] = []
        for sequence, low, end in zip(sequences, first, ends, strict=True):
            offset = offsets[sequence]
            flat += (offset + low, offset + end, low)
        spans = np.array(flat, np.int32).reshape(-1, 3)
        stored = np.array(cells, np.int32)
        if self._config.mask is MaskForm.SPANS:  # the quickest way, for every step
            return {"cells": stored, "history": history, "spans": spans}
        return {"cells": stored, **self._masks.values(history, spans, batch.sequences)}

    def undo_forward(self, batch: Batch) -> None:
        starts = dict(zip(batch.sequences[::-1].tolist(), batch.positions[::-1].tolist(), strict=True))
        for sequence, start in starts.items():
            self._table.drop_tail(sequence, start)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        if source == target:
            self.remove(target, length)
            return
        self.remove(target, 0)
        self._table.share(source, target, self.shareable(source, length))

    def can_resume(self, sequence: int, position: int) -> bool:
        if position > self.length(sequence) or not self._table.is_open(sequence, position):
            return False
        return self._is_visible(position, self._table.firsts[sequence])

    def resumable(self, sequence: int, position: int) -> int:
        position = min(position, self.length(sequence))
        if self.can_resume(sequence, position):
            return position
        whole = self._table.floor(position)
        start = whole if self.can_resume(sequence, whole) else self._span.last_start(position)
        return start if self._table.is_open(sequence, start) else 0

    def shareable(self, sequence: int, position: int) -> int:
        whole = self._table.floor(self.resumable(sequence, position))
        start = whole if self.can_resume(sequence, whole) else self._span.last_start(whole)
        return start if self._table.floor(start) == start else 0

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        length = self.length(sequence)
        if end is None or end >= length or begin >= end:
            return
        what = f"sequence {sequence}: tokens {begin} to {end} of {length} cannot be removed"
        if self._key_shift is None:
            raise NotSupportedError(f"{what}: the model's keys cannot be moved to other positions")
        if self._table.floor(end - begin) != end - begin:
            raise NotSupportedError(f"{what}: that is no number of whole pages")
        # As if no more were stored than the next token sees: what trimming left depends on other sequences.
        first = self._first_needed(length)
        if not self._is_visible(length - (end - begin), first_without(first, begin, end)):
            raise NotSupportedError(f"{what}: the next token would see some that need not be there any more")

    def first_shared(self, sequence: int, begin: int) -> int:
        # Tokens that stay before the removed ones are copied into the page of the first token after them.
        stored = self._table.stored(sequence, self._table.floor(begin))
        return self.length(sequence) - len(stored) + self._table.cells.first_shared(stored)

    def remove(self, sequence: int, begin: int, end: int | None = None, distance: int | None = None) -> None:
        self.check_remove(sequence, begin, end)
        length = self.length(sequence)
        if end is None or end >= length:
            if begin < length:
                self._table.drop_tail(sequence, self.resumable(sequence, begin))
        elif begin < end:
            assert self._key_shift is not None
            assert self.first_shared(sequence, end) == length, "keys that others see too cannot be rotated"
            moved = self._table.stored(sequence, end)
            self._key_shift.move_down(moved, end - begin if distance is None else distance)
            kept = self._table.kept_in_page(sequence, begin)
            if kept:
                assert self._copy is not None
                places = self._table.stored(sequence, end - kept, end)
                self._copy.copy(self._table.stored(sequence, begin - kept, begin), places)
            self._table.drop_middle(sequence, begin - kept, end - kept)

    def forget(self, sequences: Iterable[int]) -> None:
        self._table.forget(sequences)

    @property
    def leaves(self) -> Sequence[CausalCache]:
        return [self]

    def held(self, sequence: int, begin: int, end: int) -> Sequence[Extent]:
        first = max(begin, self._table.firsts[sequence])
        cells = self._table.stored(sequence, begin, end)
        return [Extent(first, first + len(cells), cells.copy())] if len(cells) else []

    def restorable(self, spans: Sequence[Span], start: int, length: int) -> int:
        ends = sorted({length, *(end for _, end in spans if start < end < length)}, reverse=True)
        for end in ends:
            if covered(spans, max(self._first_needed(end), start), end):
                return end
        return start

    def adopt(self, sequence: int, length: int, first_image: int | None = None) -> Extent | None:
        first = self._first_needed(length)
        if first > self.length(sequence):
            self._table.skip(sequence, first)
        begin = self.length(sequence)
        coming = {sequence: length - begin}
        if self._kept is not None and self._table.room(1) < length - begin:
            # More tokens than those of a batch may come: they replace the tokens that leave the window.
            self._table.trim(self._kept, coming)
        self._table.append(coming)
        return next(iter(self.held(sequence, begin, length)), None)

    def close(self) -> None:
        self._layers = []
        self._key_shift = self._copy = None

    def _first_needed(self, length: int) -> int:
        """The first position that a sequence of that many tokens has stored, however much was trimmed."""
        return 0 if self._kept is None else self._span.first_visible([length])[0]

    def _is_visible(self, position: int, first: int) -> bool:
        """Return whether the cells from `first` on include all that a token at `position` may see."""
        (visible,) = self._span.first_visible([position])
        return first <= visible or visible == position

    def _max_history(self) -> int:
        """The longest list of visible cells: shared cells are listed once for each sequence."""
        sequences = len(self._table.lengths)
        visible = self._span.visible
        everything = sequences * self.capacity
        return everything if visible is None else min(everything, sequences * (visible - 1) + self._max_batch)

    def _check_batch(self, batch: Batch, last: Mapping[int, int], counts: Mapping[int, int]) -> None:
        """Raise CacheFullError for a sequence that gets too long; the runner guarantees the rest."""
        assert len(batch.tokens) <= self._max_batch, f"{len(batch.tokens)} tokens in a batch"
        for sequence, count in counts.items():
            length = self._table.lengths[sequence]
            if length + count > self.capacity:
                raise CacheFullError(
                    f"sequence {sequence} holds {length} tokens and {count} more do not fit into "
                    f"its {self.capacity}"
                )
            assert last[sequence] + 1 == length + count, f"{count} tokens to {last[sequence]} follow {length}"
        if batch.ends is not None:
            limits = [last[sequence] + 1 for sequence in batch.sequences.tolist()]
            assert (batch.ends <= limits).all(), "a group is not in one batch"


def _group_ends(batch: Batch, positions: Sequence[int]) -> Sequence[int]:
    """The position after the group of each token; a token without a group is its own group."""
    ends: list[int] | None = None if batch.ends is None else batch.ends.tolist()
    return [position + 1 for position in positions] if ends is None else ends


def _key_shift(
    backend: Backend, shapes: Sequence[KVShape], keys: Sequence[KVBuffer], max_cells: int
) -> KeyShift | None:
    """The plan that moves keys; None where those of a layer cannot be moved."""
    rotated = [(buffer, s.rope) for buffer, s in zip(keys, shapes, strict=True) if s.rope is not None]
    if len(rotated) < len(keys):
        return None
    return KeyShift(backend, [(buffer, rope) for buffer, rope in rotated if len(rope.frequencies)], max_cells)


class CausalLayer(Struct, frozen=True):
    """One layer's interface of the cache, while a graph is recorded."""

    buffers: Sequence[KVBuffer]
    value_size: int
    cells: Tensor
    mask: AnyMask

    def update(self, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, AnyMask]:
        return *update_buffers(self.buffers, self.value_size, self.cells, k, v), self.mask


class StoredLayer(Struct, frozen=True):
    """One layer's interface of the cache in a graph that stores nothing."""

    keys: Tensor
    values: Tensor
    mask: AnyMask

    def read(self) -> tuple[Tensor, Tensor, AnyMask]:
        """Return what `ops.attention` reads, as `update` of a layer that stores does."""
        return self.keys, self.values, self.mask
