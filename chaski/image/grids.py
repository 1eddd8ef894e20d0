"""The published ways from a picture to tiles in a grid, for encoders that have a list of grids."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from chaski.image.files import Pixels
from chaski.image.processors import Normal, Size
from chaski.image.transforms import Values, normalize, pad, resize, tiles

__all__ = ["in_grid"]


def in_grid(pixels: Pixels, edge: int, canvases: Sequence[Size], normal: Normal) -> tuple[Values, Size]:
    """LLaVA 1.6's way: in proportion on the best of the canvases, black around it; and all in one square.

    Returns the square and the tiles of the canvas, (1 + count, edge, edge, 3), and their rows and columns.
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
    """The canvas on which most of the picture's pixels can be told apart; of equal ones the smallest."""

    def usefulness(canvas: Size) -> tuple[int, int]:
        scale = min(canvas[1] / size[1], canvas[0] / size[0])
        shown = min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])
        return shown, -canvas[0] * canvas[1]

    return max(canvases, key=usefulness)


def _inside(size: Size, canvas: Size) -> Size:
    """The size in proportion that fills the canvas one way, rounded up the other way."""
    by_height, by_width = canvas[0] / size[0], canvas[1] / size[1]
    if by_width < by_height:
        return min(ceil(size[0] * by_width), canvas[0]), canvas[1]
    return canvas[0], min(ceil(size[1] * by_height), canvas[1])
