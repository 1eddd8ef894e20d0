"""The common parts of encoders like Qwen's whose patches have one frame and a table of positions.

The table is for a square of patches, and each patch mixes some of its entries. A norm of each patch and two
layers turn squares of patches into rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy.typing as npt

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.nn import Embedding, LayerNorm, PatchEmbedding
from chaski.model.projectors.qwenvl import encoder
from chaski.model.projectors.qwenvl.encoder import FeedForward, VisionConfig, at_places
from chaski.model.projectors.qwenvl.glm4v import shares
from chaski.model.projectors.qwenvl.image import Patches

__all__ = ["Vision", "flat_side", "position_shape"]

_COLORS = 3
_EPS = 1e-5


class Tower(encoder.Tower):
    patch_embd: PatchEmbedding  # type: ignore[assignment]

    def __init__(self, config: VisionConfig, side: int) -> None:
        super().__init__(
            config, lambda size: LayerNorm(size, config.eps), lambda: FeedForward(config, ops.gelu_tanh)
        )
        self.patch_embd = PatchEmbedding(config.patch_size, config.hidden_size)
        self.position_embd = Embedding(side**2, config.hidden_size)


class Merger(encoder.Merger):
    def __init__(self, config: VisionConfig, row_size: int) -> None:
        self.input_norm = LayerNorm(config.hidden_size, _EPS)
        super().__init__(config, row_size, ("1", "2"))


class Vision(encoder.Vision):
    """`taps`: the entries that a patch mixes along a side; 2 is bilinear, 4 bicubic."""

    v: Tower
    mm: Merger
    taps: int

    def __init__(self, config: VisionConfig, row_size: int, side: int) -> None:
        super().__init__(config, row_size, Tower(config, side))
        self._side = side
        self.mm = Merger(config, row_size)

    def arrays(self, found: Patches) -> dict[str, npt.NDArray[Any]]:
        square = self._config.square
        size = found.grid[0] * square, found.grid[1] * square
        corners, parts = shares(self._side, found.places, size, self.taps)
        arrays = super().arrays(found)
        del arrays["later"]
        arrays |= {f"corner {index}": corner for index, corner in enumerate(corners)}
        return arrays | {f"share {index}": part[:, None] for index, part in enumerate(parts)}

    def embed(self, graph: Graph, patches: Dim) -> Tensor:
        size = _COLORS * self._config.patch_size**2
        x = self.v.patch_embd(graph.input("pixels", (patches, size), DType.F32))
        return x + at_places(self.v.position_embd, graph, patches, self.taps**2)

    def rows_of(self, x: Tensor, squares: Sequence[Tensor]) -> Tensor:
        return super().rows_of(self.mm.input_norm(x), squares)


def flat_side(file: GGUFFile) -> int:
    """Return the rows, and columns, of a table that lists the places one by one. Raises ModelError."""
    count = position_shape(file)[0]
    if count != isqrt(count) ** 2:
        raise ModelError(f"{file.path}: v.position_embd.weight has {count} places; it must be a square")
    return isqrt(count)


def position_shape(file: GGUFFile) -> tuple[int, ...]:
    """Return the shape of the table. Raises ModelError if it is missing."""
    name = "v.position_embd.weight"
    if name not in file.tensors:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    return file.tensors[name].shape
