"""The encoder cache: keys and values of the last image, the same for every token after it.

The rows of an image come with one batch; their keys and values stay until its position is removed. A graph
is recorded once for batches with and without images: how many rows come, and how many tokens see any, are
run-time sizes. Tokens that stand before the first image see nothing, and cross-attention is not computed for
them: so their states do not depend on what comes later.

Storage has a place for one image of each sequence. Sequences that begin alike share a place. A sequence that
gets an image while others use its place takes another one, which exists because each sequence holds one at
most.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from chaski.kvcache.base import KVShape, KVTypes, kv_buffers, update_buffers
from chaski.kvcache.batch import AttendedImage, Batch
from chaski.kvcache.extents import Extent, Span
from chaski.kvcache.masks import MaskInputs
from chaski.ml.backend import Backend
from chaski.ml.graph import AnyMask, Dim, DType, Graph, KVBuffer, Tensor

__all__ = ["EncoderCache", "EncoderLayer"]


class _Held(Struct, frozen=True):
    """An image of `num_rows` rows in `place`, for the tokens from `position` on."""

    position: int
    num_rows: int
    place: int


class _State(Struct, frozen=True):
    """The length of a sequence, and its image.

    A token at one of the positions `lost` would see an image whose rows are gone.
    """

    length: int = 0
    image: _Held | None = None
    lost: range | None = None

    def longer(self, count: int) -> _State:
        return replace(self, length=self.length + count)

    def with_image(self, image: _Held, first: int) -> _State:
        """Return the state with an image, where the first one of the sequence is at position `first`."""
        lost = range(first + 1, image.position + 1) if first < image.position else None
        return replace(self, image=image, lost=lost)

    def resumable(self, position: int) -> int:
        position = min(position, self.length)
        return position if self.lost is None or position not in self.lost else self.lost.start - 1

    def without(self, begin: int, stop: int) -> _State:
        image, count = self.image, stop - begin
        if image is not None and image.position >= begin:
            image = None if image.position < stop else replace(image, position=image.position - count)
        return _State(self.length - count, image, self._lost_without(begin, stop))

    def _lost_without(self, begin: int, stop: int) -> range | None:
        """The lost positions after a removal: those before `begin` stay, those after `stop` move down."""
        if self.lost is None or begin < self.lost.start <= stop:
            return None
        count = stop - begin
        if self.lost.start > stop:
            return range(self.lost.start - count, self.lost.stop - count)
        end = self.lost.stop
        return range(self.lost.start, end - count if end > stop else min(end, begin + 1))


class EncoderCache:
    """Keys and values of an image of up to `max_rows` rows of `row_size` for each sequence and layer."""

    def __init__(
        self,
        backend: Backend,
        shapes: Sequence[KVShape],
        max_rows: int,
        row_size: int,
        sequences: int,
        types: KVTypes,
        layers: Sequence[int] | None = None,
    ) -> None:
        """`layers` are the numbers of the layers in the model; None for 0, 1, ..."""
        self._max_rows = max_rows
        self._row_size = row_size
        self._cells_each = backend.cache_config.spaced(max_rows)
        cells = backend.cache_config.padded(sequences * self._cells_each)
        self._layers = kv_buffers(backend, shapes, cells, types, layers)
        self.rows = backend.cell_rows([buffer for layer in self._layers for buffer in layer])
        self._masks = MaskInputs(backend.cache_config, cells, sequences, max_rows)
        self._states = [_State()] * sequences
        self._before = self._states

    is_state = False
    kind = "images"

    @property
    def num_cells(self) -> int:
        """Cells for the rows of images in every layer."""
        return len(self._states) * self._cells_each

    def record(self, graph: Graph, tokens: Dim, prefix: str = "") -> Sequence[EncoderLayer]:
        max_rows = len(self._states) * self._max_rows
        num_attending = Dim(f"{prefix}attending", tokens.maximum)
        rows = graph.input(f"{prefix}rows", (Dim(f"{prefix}rows", max_rows),), DType.I32)
        attending = graph.input(num_attending.name, (num_attending,), DType.I32)
        encoded = graph.input(f"{prefix}encoded", (rows.shape[0], self._row_size), DType.F32)
        mask = self._masks.declare(graph, num_attending, max_rows, prefix)
        return [EncoderLayer(buffers, rows, encoded, attending, mask) for buffers in self._layers]

    num_droppable = sys.maxsize

    @property
    def overwrites(self) -> bool:
        return True

    def length(self, sequence: int) -> int:
        return self._states[sequence].length

    def start_forward(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        before, self._states = self._states, list(self._states)
        try:
            coming = [self._take_in(image, batch) for image in batch.attended]
        except BaseException:
            self._states = before
            raise
        self._before = before
        for sequence, count in zip(*np.unique(batch.sequences, return_counts=True), strict=True):
            self._states[sequence] = self._states[sequence].longer(int(count))
        return {
            "rows": _joined([self._cells(image) for image in coming]),
            "encoded": np.zeros((0, self._row_size), np.float32) if batch.encoded is None else batch.encoded,
            **self._visible(batch),
        }

    def _take_in(self, image: AttendedImage, batch: Batch) -> _Held:
        """Give an image of the batch a place."""
        assert image.num_rows <= self._max_rows, f"an image of {image.num_rows} rows"
        state = self._states[image.sequence]
        # Its rows replace those that an earlier token would have to see.
        first = batch.positions[np.argmax(batch.sequences == image.sequence)]
        assert state.image is None or first >= image.position, "an image in the middle of a batch"
        held = _Held(image.position, image.num_rows, self._place_for(image.sequence))
        self._states[image.sequence] = state.with_image(held, image.first)
        return held

    def _place_for(self, sequence: int) -> int:
        """The place is one that no other sequence uses: its own if possible."""
        others = {
            state.image.place
            for index, state in enumerate(self._states)
            if state.image is not None and index != sequence
        }
        own = self._states[sequence].image
        if own is not None and own.place not in others:
            return own.place
        return next(place for place in range(len(self._states)) if place not in others)

    def _cells(self, image: _Held) -> npt.NDArray[np.int32]:
        first = image.place * self._cells_each
        return np.arange(first, first + image.num_rows, dtype=np.int32)

    def _visible(self, batch: Batch) -> dict[str, npt.NDArray[Any]]:
        """The cells that the batch looks at, and its tokens that do, each with the span that it sees."""
        count = len(self._states)
        firsts, begins, ends = np.array([state.length for state in self._states]), *np.zeros((2, count), int)
        history = []
        size = 0
        for sequence in np.unique(batch.sequences):
            image = self._states[sequence].image
            if image is not None:
                history.append(self._cells(image))
                firsts[sequence], begins[sequence] = image.position, size
                size += image.num_rows
                ends[sequence] = size
        attending = np.flatnonzero(batch.positions >= firsts[batch.sequences]).astype(np.int32)
        of_token = batch.sequences[attending]
        spans = np.stack([begins[of_token], ends[of_token], np.zeros_like(of_token)], axis=1)
        return {
            "attending": attending,
            **self._masks.values(_joined(history), spans.astype(np.int32), of_token),
        }

    def undo_forward(self, batch: Batch) -> None:
        self._states = self._before

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        state = self._states[source]
        self._states[target] = state.without(state.resumable(length), state.length)

    def can_resume(self, sequence: int, position: int) -> bool:
        return position == self._states[sequence].resumable(position)

    def resumable(self, sequence: int, position: int) -> int:
        return self._states[sequence].resumable(position)

    def shareable(self, sequence: int, position: int) -> int:
        return self.resumable(sequence, position)

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        """Refuse nothing: rows of an image have no positions."""

    def remove(self, sequence: int, begin: int, end: int | None = None, distance: int | None = None) -> None:
        state = self._states[sequence]
        stop = state.length if end is None else min(end, state.length)
        if stop == state.length:
            begin = state.resumable(begin)
        if begin < stop:
            self._states[sequence] = state.without(begin, stop)

    def first_shared(self, sequence: int, begin: int) -> int:
        """Rows of an image have no positions: they do not change where tokens move."""
        return self.length(sequence)

    def forget(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self._states[sequence] = _State()

    @property
    def leaves(self) -> Sequence[EncoderCache]:
        return [self]

    def held(self, sequence: int, begin: int, end: int) -> Sequence[Extent]:
        """Return nothing: rows of an image are made of the image again."""
        return []

    def restorable(self, spans: Sequence[Span], start: int, length: int) -> int:
        return length

    def adopt(self, sequence: int, length: int, first_image: int | None = None) -> Extent | None:
        state = self._states[sequence].longer(length - self._states[sequence].length)
        if first_image is not None:  # until its rows come, no token after it can be followed
            state = replace(state, lost=range(first_image + 1, length + 1))
        self._states[sequence] = state
        return None

    def close(self) -> None:
        self._layers = []


def _joined(arrays: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int32)


class EncoderLayer(Struct, frozen=True):
    """One layer's interface of the cache, while a graph is recorded.

    `encoded` (rows, row_size) is what this batch brings of images, if anything. `attending` (n,) int32 are
    the tokens of the batch that see an image.
    """

    buffers: Sequence[KVBuffer]
    rows: Tensor
    encoded: Tensor
    attending: Tensor
    mask: AnyMask

    def update(self, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, AnyMask]:
        """Store keys and values of `encoded` (rows, kv_heads, size) -> all there is, for `attending`."""
        return *update_buffers(self.buffers, self.buffers[-1].size, self.rows, k, v), self.mask
