"""GLM-4.1V to GLM-4.6V's image encoder (GLM-V Team 2025, arXiv 2507.01006).

Its layers are those of Qwen 2.5-VL without windows, after a norm of the patches. The position table is for a
square of patches; each patch mixes 16 of its entries by bicubic interpolation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import Pixels, Values, normalize, video_size
from chaski.image.transforms import resize
from chaski.ml import ops
from chaski.ml.graph import Dim, Graph, Tensor
from chaski.ml.nn import Embedding, LayerNorm, Linear, Module, RMSNorm, SwiGLU
from chaski.model.projectors.qwenvl import encoder
from chaski.model.projectors.qwenvl.encoder import VisionConfig, at_places
from chaski.model.projectors.qwenvl.image import Patches

__all__ = ["Vision", "shares"]

_MIN_ROWS, _MOST_ROWS = 8, 6144
_FRAMES = 2  # of a picture, whose sizes are limited together
_TAPS = 4
_SHARPNESS = -0.75  # of the cubic convolution, as in torch
_MERGER_EPS = 1e-5


class Tower(encoder.Tower):
    def __init__(self, config: VisionConfig, places: int) -> None:
        super().__init__(
            config,
            lambda size: RMSNorm(size, config.eps),
            lambda: SwiGLU(config.hidden_size, config.ffn_size),
        )
        self.norm_embd = RMSNorm(config.hidden_size, config.eps)
        self.position_embd = Embedding(places, config.hidden_size)


class Projection(Module):
    """The part `mm.model`."""

    def __init__(self, size: int) -> None:
        self.fc = Linear(size, size)


class Merger(Module):
    """A convolution over each square of patches, a matrix, a norm, and a gated network."""

    def __init__(self, config: VisionConfig, row_size: int, inner: int) -> None:
        square = config.square
        self.patch_merger = Linear(config.hidden_size * config.patches_a_row, row_size)
        self.patch_merger.weight.stored = row_size, config.hidden_size, square, square
        self.model = Projection(row_size)
        self.post_norm = LayerNorm(row_size, _MERGER_EPS)
        self.gate, self.up = Linear(row_size, inner), Linear(row_size, inner)
        self.down = Linear(inner, row_size)

    def __call__(self, x: Tensor) -> Tensor:
        h = ops.gelu(self.post_norm(self.model.fc(self.patch_merger(x))))
        return self.down(ops.swiglu(self.gate(h), self.up(h)))


class Vision(encoder.Vision):
    v: Tower
    marks = ("<|begin_of_image|>", "<|end_of_image|>")

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        config = VisionConfig.read(file, _MIN_ROWS, most_rows=_MOST_ROWS)
        places = _rows(file, "v.position_embd.weight")
        if places != isqrt(places) ** 2:
            raise ModelError(f"{file.path}: v.position_embd.weight has {places} places; it must be a square")
        # The key states the inner size of the merger.
        config = replace(config, ffn_size=_rows(file, "v.blk.0.ffn_up.weight"))
        super().__init__(config, row_size, Tower(config, places))
        self._side = isqrt(places)
        self.mm = Merger(config, row_size, _rows(file, "mm.up.weight"))

    def resized(self, pixels: Pixels) -> Values:
        c, limits = self._config, self._limits
        height, width = pixels.shape[:2]
        limited = (limits.smallest * _FRAMES, limits.largest * _FRAMES)
        size = video_size(_FRAMES, height, width, c.patch_size * c.square, *limited)
        return normalize(resize(pixels, size, "bicubic"), c.normal.mean, c.normal.std)

    def arrays(self, found: Patches) -> dict[str, npt.NDArray[Any]]:
        square = self._config.square
        corners, parts = shares(self._side, found.places, (found.grid[0] * square, found.grid[1] * square))
        arrays = super().arrays(found)
        arrays |= {f"corner {index}": corner for index, corner in enumerate(corners)}
        return arrays | {f"share {index}": part[:, None] for index, part in enumerate(parts)}

    def embed(self, graph: Graph, patches: Dim) -> Tensor:
        x = self.v.norm_embd(super().embed(graph, patches))
        return x + at_places(self.v.position_embd, graph, patches, _TAPS**2)

    def rows_of(self, x: Tensor, squares: Sequence[Tensor]) -> Tensor:
        parts = [x.rows(patches) for patches in squares]
        return self.mm(ops.concat([(part, index, len(parts)) for index, part in enumerate(parts)]))


def shares(
    side: int, places: npt.NDArray[np.int32], size: tuple[int, int], count: int = _TAPS
) -> tuple[list[npt.NDArray[np.int32]], list[npt.NDArray[np.float32]]]:
    """Return `count`² places of side x side for each patch at `places`, and the patch's share in each.

    The interpolation is bilinear for a `count` of 2, and bicubic for 4. The table and the image, which has
    `size` patches, cover the same area.
    """
    exact = (places.astype(np.float32) + np.float32(0.5)) / np.array(size, np.float32) * side - np.float32(
        0.5
    )
    first = np.floor(exact)
    offsets, kernel = range(1 - count // 2, 1 + count // 2), _cubic if count == _TAPS else _linear
    taps = [np.clip(first.astype(np.int32) + offset, 0, side - 1) for offset in offsets]
    weights = [kernel(np.abs(exact - first - offset)) for offset in offsets]
    corners, parts = [], []
    for rows, of_rows in zip(taps, weights, strict=True):
        for columns, of_columns in zip(taps, weights, strict=True):
            corners.append(np.ascontiguousarray(rows[:, 0] * side + columns[:, 1], np.int32))
            parts.append(np.ascontiguousarray(of_rows[:, 0] * of_columns[:, 1], np.float32))
    return corners, parts


def _linear(distance: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the weights of entries at a distance of up to 1."""
    return np.asarray(1 - distance, np.float32)


def _cubic(distance: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the weights of entries at a distance of up to 2."""
    a, x = np.float32(_SHARPNESS), distance
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.asarray(np.where(x <= 1, near, far), np.float32)


def _rows(file: GGUFFile, name: str) -> int:
    """Return the number of rows of a matrix. Raises ModelError if it is missing."""
    if name not in file.tensors:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    return int(file.tensors[name].shape[0])
