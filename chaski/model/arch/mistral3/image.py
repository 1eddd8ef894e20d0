"""Pixtral's patches of an image file: in its own proportions, square by square."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chaski.image import Normal, in_patches, open_image, patches

__all__ = ["Patches", "read_patches"]


@dataclass(frozen=True, slots=True)
class Patches:
    """pixels (n, elements of a patch), row and column (n,) of each; grid: rows and columns of squares."""

    pixels: npt.NDArray[np.float32]
    row: npt.NDArray[np.int32]
    column: npt.NDArray[np.int32]
    grid: tuple[int, int]


def read_patches(data: bytes, longest_edge: int, patch: int, square: int, normal: Normal) -> Patches:
    """An image file -> patches, those of a square of `square` by `square` one after the other."""
    cut = patches(in_patches(open_image(data), longest_edge, patch * square, normal), patch)
    rows, columns = cut.shape[0] // square, cut.shape[1] // square
    row, column = np.indices(cut.shape[:2], np.int32).reshape(2, rows, square, columns, square)
    by_squares = cut.reshape(rows, square, columns, square, -1).swapaxes(1, 2)
    return Patches(
        np.ascontiguousarray(by_squares.reshape(-1, cut.shape[2])),
        row.swapaxes(1, 2).reshape(-1),
        column.swapaxes(1, 2).reshape(-1),
        (rows, columns),
    )
