"""The published ways from a picture to an encoder's input, one function each; models say with which sizes.

Checked number by number against Hugging Face's processors on Pillow (tests/image).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from chaski.image.files import Pixels
from chaski.image.transforms import Filter, Values, center_crop, normalize, pad, resize, tiles

__all__ = ["CLIP", "HALF", "Normal", "centered", "in_patches", "in_tiles", "squared"]

Size = tuple[int, int]
Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Normal:
    """Mean and deviation of each channel, of values from 0 to 1, that become 0 and 1."""

    mean: Triple
    std: Triple

    @property
    def color(self) -> tuple[int, int, int]:
        """The mean as a color."""
        red, green, blue = (int(each * 255) for each in self.mean)
        return red, green, blue


HALF = Normal((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CLIP = Normal((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def squared(pixels: Pixels, edge: int, filter: Filter, normal: Normal) -> Values:
    """SigLIP's way, also Gemma 3's: all of the picture in a square, whatever its proportions."""
    return normalize(resize(pixels, (edge, edge), filter), normal.mean, normal.std)


def centered(pixels: Pixels, edge: int, normal: Normal, is_padded: bool = False) -> Values:
    """CLIP's way, also LLaVA's: the shorter side to `edge`, then the middle square of it.

    With `is_padded` the picture is first made square by bars in the mean color, so that nothing is lost.
    """
    if is_padded:
        pixels = _padded_square(pixels, normal.color)
    height, width = pixels.shape[:2]
    size = (int(edge * height / width), edge) if width <= height else (edge, int(edge * width / height))
    square = center_crop(resize(pixels, size, "bicubic"), (edge, edge))
    return normalize(square, normal.mean, normal.std)


def in_patches(pixels: Pixels, longest_edge: int, patch: int, normal: Normal) -> Values:
    """Pixtral's way: at most `longest_edge`, in proportion, then up to whole patches. Any number of them."""
    height, width = pixels.shape[:2]
    ratio = max(height / longest_edge, width / longest_edge)
    if ratio > 1:
        height, width = max(int(height / ratio), 1), max(int(width / ratio), 1)
    size = (-(-height // patch) * patch, -(-width // patch) * patch)
    return normalize(resize(pixels, size, "bicubic"), normal.mean, normal.std)


def in_tiles(pixels: Pixels, edge: int, max_tiles: int, normal: Normal) -> tuple[Values, Size]:
    """Llama 3.2's way: in proportion on the best canvas of tiles, with black below or beside it.

    Returns the tiles (count, edge, edge, 3), and their rows and columns.
    """
    size = pixels.shape[0], pixels.shape[1]
    rows, columns = _best_grid(size, edge, max_tiles)
    canvas = (rows * edge, columns * edge)
    fitted = resize(pixels, _fit_canvas(size, canvas, edge), "bilinear")
    values = normalize(pad(fitted, canvas), normal.mean, normal.std)
    return tiles(values, rows, columns), (rows, columns)


def _padded_square(pixels: Pixels, color: tuple[int, int, int]) -> Pixels:
    height, width = pixels.shape[:2]
    edge = max(height, width)
    return pad(pixels, (edge, edge), ((edge - height) // 2, (edge - width) // 2), color)


def _best_grid(size: Size, edge: int, max_tiles: int) -> Size:
    """Rows and columns of the canvas that enlarges least, else shrinks least; of equal ones the smallest."""
    counts = range(1, max_tiles + 1)
    grids = [grid for grid in product(counts, counts) if grid[0] * grid[1] <= max_tiles]
    scales = {grid: min(grid[0] * edge / size[0], grid[1] * edge / size[1]) for grid in grids}
    enlarging = [scale for scale in scales.values() if scale >= 1]
    best = min(enlarging) if enlarging else max(scales.values())
    return min((grid for grid in grids if scales[grid] == best), key=lambda grid: grid[0] * grid[1])


def _fit_canvas(size: Size, canvas: Size, edge: int) -> Size:
    """The size in proportion that fills the canvas one way; small pictures are enlarged up to a tile."""
    (height, width), target = size, tuple(np.clip(size, edge, canvas).tolist())
    by_height, by_width = target[0] / height, target[1] / width
    if by_width < by_height:
        return min(max(int(height * by_width), 1), target[0]), target[1]
    return target[0], min(max(int(width * by_height), 1), target[1])
