"""The encoder cache: what cross-attention sees of the last image, the same for every token behind it.

The rows of an image come with one batch; their keys and values stay until its position is removed. A graph
is recorded once for batches with and without an image: how many rows come, and how many tokens see any, are
run-time sizes. Tokens that stand before the first image see nothing, and cross-attention is not computed for
them: so their states do not depend on what comes later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from chaski.errors import NotSupportedError, UnsupportedError
from chaski.kvcache.base import KVShape, KVTypes
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, KVRole, Mask, Tensor

if TYPE_CHECKING:
    from chaski.model.input import Batch

__all__ = ["EncoderCache", "EncoderLayer"]


@dataclass(frozen=True, slots=True)
class _Held:
    """An image of `num_rows` rows, for the tokens from `position` on."""

    position: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class _State:
    """What is known of the sequence.

    Behind position `lost` and up to the image, tokens saw an image whose rows are no longer there.
    """

    length: int = 0
    image: _Held | None = None
    lost: int | None = None

    def longer(self, count: int) -> _State:
        return replace(self, length=self.length + count)

    def with_image(self, image: _Held) -> _State:
        lost = self.image.position if self.lost is None and self.image is not None else self.lost
        return replace(self, image=image, lost=lost)

    def resumable(self, position: int) -> int:
        position = min(position, self.length)
        if self.lost is None or self.image is None or not self.lost < position <= self.image.position:
            return position
        return self.lost

    def without(self, begin: int, stop: int) -> _State:
        image, lost = self.image, self.lost
        if image is not None and image.position >= begin:
            kept = replace(image, position=image.position - (stop - begin))
            image = None if image.position < stop else kept
        if lost is not None and lost >= begin:
            lost = None if lost < stop else lost - (stop - begin)
        return _State(self.length - (stop - begin), image, lost)


class EncoderCache:
    """Keys and values of up to `max_rows` rows of `row_size`, for every layer in `shapes`, and one sequence.

    Raises UnsupportedError for more sequences.
    """

    def __init__(
        self,
        backend: Backend,
        shapes: Sequence[KVShape],
        max_rows: int,
        row_size: int,
        sequences: int,
        types: KVTypes,
    ) -> None:
        if sequences > 1:
            raise UnsupportedError(
                f"parallel = {sequences}: a model that looks at images by cross-attention serves one "
                "sequence at a time; use parallel = 1"
            )
        self._max_rows = max_rows
        self._row_size = row_size
        self._layers = [
            (
                backend.kv_buffer(KVRole.KEYS, max_rows, shape.heads, shape.key_size, types.keys),
                backend.kv_buffer(KVRole.VALUES, max_rows, shape.heads, shape.value_size, types.values),
            )
            for shape in shapes
        ]
        self._state = self._before = _State()

    def record(self, graph: Graph, tokens: Dim, prefix: str = "") -> Sequence[EncoderLayer]:
        rows, history, seeing = (
            graph.input(f"{prefix}{name}", (Dim(f"{prefix}{name}", maximum),), DType.I32)
            for name, maximum in (
                ("rows", self._max_rows),
                ("history", self._max_rows),
                ("seeing", tokens.maximum),
            )
        )
        encoded = graph.input(f"{prefix}encoded", (rows.shape[0], self._row_size), DType.F32)
        mask = Mask(history, graph.input(f"{prefix}spans", (seeing.shape[0], 3), DType.I32))
        return [EncoderLayer(keys, values, rows, encoded, seeing, mask) for keys, values in self._layers]

    @property
    def can_step_back(self) -> bool:
        return True

    def length(self, sequence: int) -> int:
        return self._state.length

    def start_forward(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        self._before = self._state
        encoded = np.zeros((0, self._row_size), np.float32)
        if batch.encoded is not None:
            position, encoded = batch.encoded.position, batch.encoded.rows
            assert len(encoded) <= self._max_rows, f"an image of {len(encoded)} rows"
            # Its rows take the place of those that a token before it would have to see.
            is_alone = self._state.image is None or batch.positions[0] >= position
            assert is_alone, "an image in the middle of a batch"
            self._state = self._state.with_image(_Held(position, len(encoded)))
        self._state = self._state.longer(len(batch.tokens))
        image = self._state.image
        num_visible = 0 if image is None else image.num_rows
        first = self._state.length if image is None else image.position
        seeing = np.flatnonzero(batch.positions >= first).astype(np.int32)
        return {
            "rows": np.arange(len(encoded), dtype=np.int32),
            "encoded": encoded,
            "history": np.arange(num_visible, dtype=np.int32),
            "seeing": seeing,
            "spans": np.tile(np.array([0, num_visible, 0], np.int32), (len(seeing), 1)),
        }

    def undo_forward(self, batch: Batch) -> None:
        self._state = self._before

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        raise NotSupportedError(f"sequence {source} cannot be copied: there is room for one image only")

    def can_resume(self, sequence: int, position: int) -> bool:
        return position == self._state.resumable(position)

    def resumable(self, sequence: int, position: int) -> int:
        return self._state.resumable(position)

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        """Nothing is refused: rows of an image have no positions."""

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        length = self._state.length
        stop = length if end is None else min(end, length)
        if stop == length:
            begin = self._state.resumable(begin)
        if begin < stop:
            self._state = self._state.without(begin, stop)

    def close(self) -> None:
        self._layers = []


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer's face of the cache, while a graph is recorded.

    `encoded` (rows, row_size) is what this batch brings of an image, if anything, and `seeing` (n,) int32 are
    the tokens of the batch that see one.
    """

    keys: KVBuffer
    values: KVBuffer
    rows: Tensor
    encoded: Tensor
    seeing: Tensor
    mask: Mask

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Mask]:
        """Store keys and values of `encoded` (rows, kv_heads, size) -> all there is, for `seeing`."""
        return ops.store(k, self.rows, self.keys), ops.store(v, self.rows, self.values), self.mask
