"""The exact steps of image processors: the results equal those of Hugging Face's processors on Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from chaski.errors import ImageError
from chaski.image.files import MAX_PIXELS, Pixels

__all__ = ["Filter", "Values", "center_crop", "normalize", "pad", "patches", "resize", "tiles"]

Values: TypeAlias = npt.NDArray[np.float32]
"""Pixels as the input of an encoder, (height, width, 3)."""

Filter: TypeAlias = Literal["bilinear", "bicubic", "lanczos"]


def resize(pixels: Pixels, size: tuple[int, int], filter: Filter) -> Pixels:
    """Return the picture in another size. Shrinking averages over all pixels (antialiasing).

    Raises ImageError for a size beyond all limits, which can result from extreme proportions.
    """
    from PIL import Image

    height, width = size
    if height * width > MAX_PIXELS:
        raise ImageError(
            f"the image would become {width} x {height} pixels for this model: its sides are too "
            "unequal; crop it"
        )
    if pixels.shape[:2] == size:
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling[filter.upper()]))


def normalize(pixels: Pixels, mean: Sequence[float], std: Sequence[float]) -> Values:
    """Scale 0..255 to 0..1, subtract `mean` and divide by `std`, each with one number per channel."""
    values: Values = (pixels.astype(np.float64) * (1 / 255)).astype(np.float32)
    values -= np.asarray(mean, np.float32)
    values /= np.asarray(std, np.float32)
    return values


def pad(
    pixels: Pixels,
    size: tuple[int, int],
    corner: tuple[int, int] = (0, 0),
    color: tuple[int, int, int] = (0, 0, 0),
) -> Pixels:
    """Return the picture on a background of this size and color, with its upper left corner at (row, column)
    `corner`.
    """
    ground = np.empty((*size, 3), np.uint8)
    ground[:] = color
    (row, column), (height, width) = corner, pixels.shape[:2]
    ground[row : row + height, column : column + width] = pixels
    return ground


def center_crop(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Return the middle of the picture, surrounded by black if the picture is smaller. Odd remainders are cut
    at the bottom and at the right.
    """
    height, width = (max(have, want) for have, want in zip(pixels.shape[:2], size, strict=True))
    if (height, width) != pixels.shape[:2]:
        corner = (-(-(height - pixels.shape[0]) // 2), -(-(width - pixels.shape[1]) // 2))
        pixels = pad(pixels, (height, width), corner)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    return pixels[top : top + size[0], left : left + size[1]]


def tiles(values: Values, rows: int, columns: int) -> Values:
    """Cut into equal parts, row by row -> (rows * columns, height, width, 3)."""
    height, width = values.shape[0] // rows, values.shape[1] // columns
    cut = values.reshape(rows, height, columns, width, 3).swapaxes(1, 2)
    return np.ascontiguousarray(cut.reshape(rows * columns, height, width, 3))


def patches(values: Values, size: int) -> Values:
    """Cut into squares of `size` pixels -> (rows, columns, 3 * size * size). Remainders at the bottom and at
    the right are cut off.

    Each square is laid out like a convolution kernel, channel by channel. So a product with the kernels as a
    matrix (features, 3 * size * size) is the convolution whose stride equals its size.
    """
    rows, columns = values.shape[0] // size, values.shape[1] // size
    whole = values[: rows * size, : columns * size]
    cut = whole.reshape(rows, size, columns, size, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(cut.reshape(rows, columns, 3 * size * size))
