"""LFM2-VL (Liquid AI 2025): SigLIP 2 for images of any proportions, and a projector over patch squares.

A large image is cut into tiles, and the whole image follows them. The position table is for a square of
patches; for other sizes the encoder resizes it by a product with a matrix that comes with the image.
"""

from __future__ import annotations

from itertools import product
from math import isqrt

import numpy as np
import numpy.typing as npt

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.image import SpareTiles, Values, in_spare_tiles, open_image, patches
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.nn import LayerNorm, Linear, Module
from chaski.model.multimodal import EncoderShape, Image, Layout, Tile
from chaski.model.projectors import siglip
from chaski.model.projectors.siglip import SigLIPConfig
from chaski.model.projectors.vit import square_inputs, squares_as_rows

_EPS = 1e-5


class Places(Module):
    """The position embeddings of a square of patches; every patch reads a mixture of them."""

    def __init__(self, count: int, size: int) -> None:
        self.weight = Weight((count, size), plain=True)

    def __call__(self, shares: Tensor) -> Tensor:
        return ops.product(shares, self.weight)


class Tower(siglip.Tower):
    position_embd: Places  # type: ignore[assignment]

    def __init__(self, config: SigLIPConfig, num_places: int) -> None:
        super().__init__(config, num_places)
        self._num_places = num_places
        self.position_embd = Places(num_places, config.hidden_size)

    def positions(self, graph: Graph, patches: Dim) -> Tensor:
        """Return the position embedding of each patch, a mixture of all places; see `resizing`."""
        return self.position_embd(graph.input("shares", (patches, self._num_places), DType.F32))


class Projector(Module):
    """The projector; the norm is optional."""

    def __init__(self, size: int, hidden_size: int, row_size: int, has_norm: bool) -> None:
        self._has_norm = has_norm
        if has_norm:
            self.input_norm = LayerNorm(size, _EPS)
        setattr(self, "1", Linear(size, hidden_size))
        setattr(self, "2", Linear(hidden_size, row_size))

    def __call__(self, x: Tensor) -> Tensor:
        first, second = getattr(self, "1"), getattr(self, "2")
        projected: Tensor = second(ops.gelu(first(self.input_norm(x) if self._has_norm else x)))
        return projected


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`."""

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = c = SigLIPConfig.read(file)
        self._square = file.get(f"{file.architecture}.vision.projector.scale_factor", int, 2)
        self._tiling = s = _tiling(file, c.patch_size, self._square)
        self._side = isqrt(_shape(file, "v.position_embd.weight")[0])
        squares = max(s.tokens.stop - 1, (s.tile // s.unit) ** 2)
        self.shape = EncoderShape(
            max_patches=squares * self._square**2,
            max_rows=squares,
            row_size=row_size,
            heads=c.heads,
            max_tiles=s.counts.stop,
        )
        self.v = Tower(c, self._side**2)
        self.mm = Projector(
            c.hidden_size * self._square**2,
            _shape(file, "mm.1.weight")[0],
            row_size,
            "mm.input_norm.weight" in file.tensors,
        )

    def read_image(self, data: bytes) -> Image:
        parts, grid = in_spare_tiles(open_image(data), self._tiling, self._config.normal)
        tiles = [self._tile(part) for part in parts]
        return Image.of_tiles(tiles, _layout(grid, [tile.num_rows for tile in tiles]))

    def _tile(self, pixels: Values) -> Tile:
        cut = patches(pixels, self._config.patch_size)
        grid = cut.shape[0], cut.shape[1]
        arrays = {
            "pixels": cut.reshape(grid[0] * grid[1], -1),
            "shares": resizing(self._side, grid),
            **square_inputs(grid, self._square),
        }
        return Tile(arrays, grid[0] * grid[1] // self._square**2)

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        return self.mm(squares_as_rows(graph, self.v(graph, patches, history), rows, self._square))


def _shape(file: GGUFFile, name: str) -> tuple[int, ...]:
    if name not in file.tensors:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    return file.tensors[name].shape


def _tiling(file: GGUFFile, patch: int, square: int) -> SpareTiles:
    """Return how images are cut: as Ollama's files define, else as in the published image processor."""
    prefix = f"{file.architecture}.vision"
    for key in ("do_image_splitting", "use_thumbnail", "use_image_special_tokens"):
        if not file.get(f"{prefix}.{key}", bool, True):
            raise UnsupportedError(f"{file.path}: {prefix}.{key} = false is not supported")
    tile, least, most, fewest, rows = (
        file.get(f"{prefix}.{key}", int, usual)
        for key, usual in (
            ("tile_size", 512),
            ("min_tiles", 2),
            ("max_tiles", 10),
            ("min_image_tokens", 64),
            ("max_image_tokens", 256),
        )
    )
    tolerance = file.get(f"{prefix}.max_pixels_tolerance", float, 2.0)
    if square < 1 or tile < 1 or tile % (patch * square) or not 2 <= least <= most or not 0 < fewest <= rows:
        raise ModelError(
            f"{file.path}: {least} to {most} tiles of {tile} pixels with {fewest} to {rows} rows per image "
            f"do not fit patches of {patch} pixels in squares of {square}"
        )
    return SpareTiles(patch, patch * square, range(fewest, rows + 1), tile, range(least, most + 1), tolerance)


def resizing(side: int, grid: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return the shares of side x side places in rows x columns patches: (rows · columns, side²).

    The resizing is bilinear; with more places than patches, all places count (antialiasing).
    """
    by_row, by_column = (_shares(side, count) for count in grid)
    shares = by_row[:, None, :, None] * by_column[None, :, None, :]
    return np.ascontiguousarray(shares.reshape(grid[0] * grid[1], side**2), np.float32)


def _shares(side: int, count: int) -> npt.NDArray[np.float64]:
    """Return the shares of `side` places in `count` patches of a line: (count, side)."""
    scale = side / count
    reach = max(scale, 1.0)
    centers = (np.arange(count) + 0.5) * scale
    distances = np.abs(np.arange(side) + 0.5 - centers[:, None]) / reach
    shares = np.maximum(1 - distances, 0)
    total: npt.NDArray[np.float64] = shares / shares.sum(axis=1, keepdims=True)
    return total


def _layout(grid: tuple[int, int], counts: list[int]) -> Layout:
    """Return the tiles with their places, counted from 1, then the whole image; only it for one tile."""
    *tiles, whole = counts
    parts: list[str | int] = ["<|image_start|>"]
    if tiles:
        places = product(range(1, grid[0] + 1), range(1, grid[1] + 1))
        for (row, column), count in zip(places, tiles, strict=True):
            parts += [f"<|img_row_{row}_col_{column}|>", count]
        parts.append("<|img_thumbnail|>")
    return (*parts, whole, "<|image_end|>")
