"""The published ways to cut a picture into a grid of tiles, for encoders that define a list of grids."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, sqrt

import numpy as np
from msgspec import Struct

from chaski.errors import ImageError
from chaski.image.files import Pixels
from chaski.image.processors import Normal, Size, best_grid, likest_grid
from chaski.image.transforms import Values, normalize, pad, resize, tiles

__all__ = ["SpareTiles", "in_grid", "in_rounded_tiles", "in_spare_tiles"]


def in_grid(pixels: Pixels, edge: int, canvases: Sequence[Size], normal: Normal) -> tuple[Values, Size]:
    """Fit the picture on the best canvas with black around it, and also in one square, as LLaVA 1.6 does.

    Returns the square followed by the tiles of the canvas, (1 + count, edge, edge, 3), and the numbers of
    rows and columns of tiles.
    """
    size = pixels.shape[0], pixels.shape[1]
    canvas = _best_canvas(size, canvases)
    fitted = resize(pixels, _inside(size, canvas), "bicubic")
    corner = (canvas[0] - fitted.shape[0]) // 2, (canvas[1] - fitted.shape[1]) // 2
    rows, columns = canvas[0] // edge, canvas[1] // edge
    parts = tiles(normalize(pad(fitted, canvas, corner), normal.mean, normal.std), rows, columns)
    whole = normalize(resize(pixels, (edge, edge), "bicubic"), normal.mean, normal.std)
    return np.concatenate([whole[None], parts]), (rows, columns)


def _best_canvas(size: Size, canvases: Sequence[Size]) -> Size:
    """Return the canvas that preserves the most pixels of the picture; among equal ones, the smallest."""

    def usefulness(canvas: Size) -> tuple[int, int]:
        scale = min(canvas[1] / size[1], canvas[0] / size[0])
        shown = min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])
        return shown, -canvas[0] * canvas[1]

    return max(canvases, key=usefulness)


def _inside(size: Size, canvas: Size) -> Size:
    """Return the size that keeps the proportions and fills the canvas in one direction, rounded up in the
    other.
    """
    by_height, by_width = canvas[0] / size[0], canvas[1] / size[1]
    if by_width < by_height:
        return min(ceil(size[0] * by_width), canvas[0]), canvas[1]
    return canvas[0], min(ceil(size[1] * by_height), canvas[1])


class SpareTiles(Struct, frozen=True):
    """The way LFM2-VL sees an image: whole with a number of rows in `tokens`, a large one in tiles besides.

    patch, unit  pixels along a side of a patch, and of the square of patches that becomes a row
    tile         pixels along a side of a tile
    counts       how many tiles there may be
    tolerance    how many times the most rows an image has that is large
    """

    patch: int
    unit: int
    tokens: range
    tile: int
    counts: range
    tolerance: float


def in_spare_tiles(pixels: Pixels, tiling: SpareTiles, normal: Normal) -> tuple[list[Values], Size]:
    """Resize the whole picture in proportion, and precede it with tiles if it is large, as LFM2-VL does.

    Returns the tiles followed by the whole picture, and the rows and columns of the tiles, which are (1, 1)
    if there are no tiles. Raises ImageError if the sides are too unequal for the allowed number of rows.
    """
    size = pixels.shape[0], pixels.shape[1]
    whole = [normalize(resize(pixels, _whole_size(size, tiling), "bilinear"), normal.mean, normal.std)]
    height, width = (max(tiling.patch, round(side / tiling.unit) * tiling.unit) for side in size)
    most = (tiling.tokens.stop - 1) * tiling.unit**2
    if height * width <= most * tiling.tolerance:
        return whole, (1, 1)
    grid = likest_grid(pixels, tiling.tile, tiling.counts)
    canvas = resize(pixels, (grid[0] * tiling.tile, grid[1] * tiling.tile), "bilinear")
    return [*tiles(normalize(canvas, normal.mean, normal.std), *grid), *whole], grid


def _whole_size(size: Size, tiling: SpareTiles) -> Size:
    """Return the size in proportion and in whole squares whose number of rows is within the limits."""
    unit, area = tiling.unit, size[0] * size[1]
    least, most = tiling.tokens.start * unit**2, (tiling.tokens.stop - 1) * unit**2
    height, width = (max(unit, round(side / unit) * unit) for side in size)
    if height * width > most:
        ratio = sqrt(area / most)
        height, width = (max(unit, floor(side / ratio / unit) * unit) for side in size)
    elif height * width < least:
        ratio = sqrt(least / area)
        height, width = (ceil(side * ratio / unit) * unit for side in size)
    if height * width > most:
        raise ImageError(
            f"the image has {size[1]} x {size[0]} pixels: its sides are too unequal for this model; crop it"
        )
    return height, width


def in_rounded_tiles(pixels: Pixels, edge: int, max_tiles: int, normal: Normal) -> tuple[Values, Size]:
    """Cut the picture into tiles as Llama 3.2 does, append the whole picture if there are several, and round
    to BF16, as Llama 4 does.

    Returns the tiles row by row (count, edge, edge, 3), and the rows and columns without the tile of the
    whole picture.
    """
    size = pixels.shape[0], pixels.shape[1]
    rows, columns = best_grid(size, edge, max_tiles)
    canvas = rows * edge, columns * edge
    fitted = resize(pixels, _fit_in_single(size, canvas, edge), "bilinear")
    cut = tiles(_in_bf16(pad(fitted, canvas), normal), rows, columns)
    if len(cut) == 1:
        return cut, (rows, columns)
    whole = _in_bf16(resize(pixels, (edge, edge), "bilinear"), normal)
    return np.concatenate([cut, whole[None]]), (rows, columns)


def _fit_in_single(size: Size, canvas: Size, edge: int) -> Size:
    """Return the size that keeps the proportions and fills the canvas in one direction; small pictures are
    enlarged to at most one tile.

    The published processor computes in single precision if the canvas limits a side.
    """
    target = [min(max(side, edge), limit) for side, limit in zip(size, canvas, strict=True)]
    by_height, by_width = (
        np.float32(limit) / np.float32(side) if limit < max(side, edge) else wanted / side
        for side, limit, wanted in zip(size, canvas, target, strict=True)
    )
    if by_width < by_height:
        return min(max(floor(size[0] * by_width), 1), target[0]), target[1]
    return target[0], min(max(floor(size[1] * by_height), 1), target[1])


def _in_bf16(pixels: Pixels, normal: Normal) -> Values:
    """Scale 0..255 to 0..1, subtract the mean and divide by the deviation; round each result to BF16."""
    levels = np.arange(256, dtype=np.float32)[:, None] * np.float32(1 / 255)
    mean, std = (_rounded(np.asarray(each, np.float32)) for each in (normal.mean, normal.std))
    table = _rounded(_rounded(_rounded(levels) - mean) / std)
    values: Values = table[pixels, np.arange(3)]
    return values


def _rounded(values: Values) -> Values:
    """Return the nearest BF16 numbers; ties go to the even one."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)).view(np.float32)
