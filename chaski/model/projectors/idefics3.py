"""Idefics 3 (Laurençon et al. 2024), SmolVLM (Marafioti et al. 2025): SigLIP, and one matrix over squares.

An image is cut into tiles, and the whole image follows them. transformers computes the place of a patch from
fractions of the image, which gives the same places for a whole tile in all published sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import Values, in_split_tiles, open_image, patches
from chaski.kvcache import LayerCache
from chaski.ml.graph import Dim, Graph, Tensor
from chaski.ml.nn import Linear, Module
from chaski.model.multimodal import EncoderShape, Image, Tile
from chaski.model.projectors.siglip import SigLIPConfig, Tower
from chaski.model.projectors.vit import square_inputs, squares_as_rows

_TILES_A_SIDE = 4  # if a file does not define the longest edge, as older ones do not


class Projector(Module):
    """The projector; GGUF names its only matrix `model.fc`."""

    def __init__(self, size: int, row_size: int) -> None:
        self.model = _Connector(size, row_size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.model.fc(x)


class _Connector(Module):
    def __init__(self, size: int, row_size: int) -> None:
        self.fc = Linear(size, row_size)


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`."""

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = c = SigLIPConfig.read(file)
        prefix = f"{file.architecture}.vision"
        self._square = file.get(f"{prefix}.projector.scale_factor", int, 2)
        if self._square < 1 or c.side % self._square:
            raise ModelError(
                f"{file.path}: {c.side} x {c.side} patches cannot be split into {self._square} x "
                f"{self._square} squares"
            )
        self._longest_edge = file.get(f"{prefix}.preproc_image_size", int, 0) or _TILES_A_SIDE * c.edge
        self._num_rows = (c.side // self._square) ** 2
        max_tiles = (-(-self._longest_edge // c.edge)) ** 2 + 1
        self.shape = EncoderShape(c.num_patches, self._num_rows, row_size, c.heads, max_tiles)
        self.v = Tower(c, c.num_patches)
        self.mm = Projector(c.hidden_size * self._square**2, row_size)

    def read_image(self, data: bytes) -> Image:
        c = self._config
        tiles, grid = in_split_tiles(open_image(data), c.edge, self._longest_edge, c.normal)
        return Image.of_tiles([self._tile(tile) for tile in tiles], tuple(_layout(grid, self._num_rows)))

    def _tile(self, pixels: Values) -> Tile:
        c = self._config
        arrays = {
            "pixels": patches(pixels, c.patch_size).reshape(c.num_patches, -1),
            "places": np.arange(c.num_patches, dtype=np.int32),
            **square_inputs((c.side, c.side), self._square),
        }
        return Tile(arrays, self._num_rows)

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        return self.mm(squares_as_rows(graph, self.v(graph, patches, history), rows, self._square))


def _layout(grid: tuple[int, int], num_rows: int) -> Iterator[str | int]:
    """Yield the tiles with their places, counted from 1, then the whole image."""
    for row, column in product(range(1, grid[0] + 1), range(1, grid[1] + 1)):
        yield f"<fake_token_around_image><row_{row}_col_{column}>"
        yield num_rows
        if column == grid[1]:
            yield "\n"
    yield from ("\n",) if grid[0] else ()
    yield from ("<fake_token_around_image><global-img>", num_rows, "<fake_token_around_image>")
