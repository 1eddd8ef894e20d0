"""The rows of an image in a grid of tiles (LLaVA 1.6): cropped to the image, with a row after each line."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile

__all__ = ["grid_rows", "max_grid_rows", "read_canvases"]

I32 = npt.NDArray[np.int32]
Size = tuple[int, int]


def read_canvases(file: GGUFFile, edge: int) -> list[Size]:
    """Return the (height, width) canvases of an image, in tiles of `edge`; none for a single square.

    Files store flat pairs. llama.cpp reads the first number as a width; transformers and chaski read it as a
    height. The lists of published models contain both orders.
    """
    key = f"{file.architecture}.vision.image_grid_pinpoints"
    numbers = file.get(key, list[int], None)
    if numbers is None:
        return []
    pairs = list(zip(numbers[::2].tolist(), numbers[1::2].tolist(), strict=False))
    if len(numbers) % 2 or not pairs or any(side < edge or side % edge for pair in pairs for side in pair):
        raise ModelError(f"{file.path}: {key} must contain pairs of multiples of {edge}, the size of a tile")
    return pairs


def max_grid_rows(canvases: Iterable[Size], edge: int, side: int) -> int:
    """Return the rows of the largest image: of the overview, and of the tiles with their line ends."""
    grids = [(height // edge * side, width // edge * side) for height, width in canvases]
    return side**2 + max(lines * (columns + 1) for lines, columns in grids)


def grid_rows(size: Size, grid: Size, side: int, has_ends: bool) -> tuple[list[I32], I32]:
    """Return the patches of each tile that show part of the image, and the order of all rows in the prompt.

    The image of `size` (height, width) lies on a grid of tiles with `side` patches per side. The overview,
    the whole image in one square, comes first; if there are line ends, its last row is the line end.
    """
    (rows, columns), count = grid, side**2
    shown = np.zeros((rows, side, columns, side), bool)
    part = _inside(size, (rows * side, columns * side))
    shown.reshape(rows * side, columns * side)[part] = True
    by_tile = shown.swapaxes(1, 2).reshape(rows * columns, count)
    numbers = np.zeros(by_tile.shape, np.int32)
    numbers[by_tile] = count + has_ends + np.arange(by_tile.sum(), dtype=np.int32)
    lines = numbers.reshape(rows, columns, side, side).swapaxes(1, 2).reshape(rows * side, -1)[part]
    if has_ends:
        lines = np.concatenate([lines, np.full((len(lines), 1), count, np.int32)], axis=1)
    order = np.concatenate([np.arange(count, dtype=np.int32), lines.reshape(-1)])
    return [np.flatnonzero(tile).astype(np.int32) for tile in by_tile], order


def _inside(size: Size, patches: Size) -> tuple[slice, slice]:
    """Return the rows and columns of the patches that the image covers; its borders are symmetric."""
    (height, width), (rows, columns) = size, patches
    if width / height > columns / rows:
        border = (rows - int(round(height * (columns / width), 7))) // 2
        return slice(border, rows - border), slice(None)
    border = (columns - int(round(width * (rows / height), 7))) // 2
    return slice(None), slice(border, columns - border)
