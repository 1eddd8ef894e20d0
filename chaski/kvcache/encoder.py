"""The encoder cache: what cross-attention sees of the last image, the same for every token.

The rows of an image come with one batch and stay until its position is removed. A graph is recorded once for
batches with and without an image: their number is a run-time size, 0 for text. Without any image tokens see
row 0, which holds zeros, so that attention gives zeros; `is_filled` says when a graph without cross-attention
does as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chaski.errors import NotSupportedError, UnsupportedError
from chaski.kvcache.base import KVShape, KVTypes
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, KVRole, Mask, Tensor

if TYPE_CHECKING:
    from chaski.model.input import Batch, Encoded

__all__ = ["EncoderCache", "EncoderLayer"]

I32 = npt.NDArray[np.int32]


class EncoderCache:
    """Keys and values of up to `max_rows` rows, for every layer in `shapes`. There is one sequence.

    Raises UnsupportedError for more.
    """

    def __init__(
        self, backend: Backend, shapes: Sequence[KVShape], max_rows: int, sequences: int, types: KVTypes
    ) -> None:
        if sequences > 1:
            raise UnsupportedError(
                f"parallel = {sequences}: a model that looks at images by cross-attention serves one "
                "sequence at a time; use parallel = 1"
            )
        self._max_rows = max_rows
        num_cells = 1 + max_rows
        self._layers = [
            (
                backend.kv_buffer(KVRole.KEYS, num_cells, shape.heads, shape.key_size, types.keys),
                backend.kv_buffer(KVRole.VALUES, num_cells, shape.heads, shape.value_size, types.values),
            )
            for shape in shapes
        ]
        self._length = 0
        self._image: Encoded | None = None
        self._image_before: Encoded | None = None

    @property
    def is_filled(self) -> bool:
        """Whether there is an image to see."""
        return self._image is not None

    def record(self, graph: Graph, tokens: Dim, prefix: str = "") -> Sequence[EncoderLayer]:
        names = [f"{prefix}{name}" for name in ("rows", "history")]
        rows, history = (graph.input(name, (Dim(name, self._max_rows),), DType.I32) for name in names)
        mask = Mask(history, graph.input(f"{prefix}spans", (tokens, 3), DType.I32))
        return [EncoderLayer(keys, values, rows, mask) for keys, values in self._layers]

    @property
    def can_step_back(self) -> bool:
        return True

    def length(self, sequence: int) -> int:
        return self._length

    def start_forward(self, batch: Batch) -> Mapping[str, I32]:
        count = len(batch.tokens)
        self._length += count
        self._image_before = self._image
        self._image = batch.encoded or self._image
        new = 0 if batch.encoded is None else batch.encoded.num_rows
        assert new <= self._max_rows, f"an image of {new} rows"
        visible = np.arange(1, 1 + self._image.num_rows) if self._image is not None else np.zeros(1)
        spans = np.tile(np.array([0, len(visible), 0], np.int32), (count, 1))
        return {
            "rows": np.arange(1, 1 + new, dtype=np.int32),
            "history": visible.astype(np.int32),
            "spans": spans,
        }

    def undo_forward(self, batch: Batch) -> None:
        self._length -= len(batch.tokens)
        self._image = self._image_before

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        raise NotSupportedError(f"sequence {source} cannot be copied: there is room for one image only")

    def can_resume(self, sequence: int, position: int) -> bool:
        return position <= self._length

    def resumable(self, sequence: int, position: int) -> int:
        return min(position, self._length)

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        """Nothing is refused: rows of an image have no positions."""

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        stop = self._length if end is None else min(end, self._length)
        if begin >= stop:
            return
        self._length -= stop - begin
        if self._image is not None and self._image.position >= begin:
            is_removed = self._image.position < stop
            self._image = None if is_removed else self._image.moved_down(stop - begin)

    def close(self) -> None:
        self._layers = []


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer's face of the cache, while a graph is recorded."""

    keys: KVBuffer
    values: KVBuffer
    rows: Tensor
    mask: Mask

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Mask]:
        """Store what this batch brings of an image (rows, kv_heads, size), if anything -> all there is."""
        return ops.store(k, self.rows, self.keys), ops.store(v, self.rows, self.values), self.mask
