"""Patches of a picture in the order of the squares that an encoder joins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.image.transforms import Values, patches

__all__ = ["Patches", "in_squares"]


class Patches(Struct, frozen=True):
    """Patches of a picture. pixels (n, elements of a patch); row and column (n,) of each patch; grid: rows
    and columns of squares.
    """

    pixels: npt.NDArray[np.float32]
    row: npt.NDArray[np.int32]
    column: npt.NDArray[np.int32]
    grid: tuple[int, int]


def in_squares(values: Values, patch: int, square: int) -> Patches:
    """Cut normalized pixels into patches, with the patches of each `square` by `square` square next to each
    other.
    """
    cut = patches(values, patch)
    rows, columns = cut.shape[0] // square, cut.shape[1] // square
    row, column = np.indices(cut.shape[:2], np.int32).reshape(2, rows, square, columns, square)
    by_squares = cut.reshape(rows, square, columns, square, -1).swapaxes(1, 2)
    return Patches(
        np.ascontiguousarray(by_squares.reshape(-1, cut.shape[2])),
        row.swapaxes(1, 2).reshape(-1),
        column.swapaxes(1, 2).reshape(-1),
        (rows, columns),
    )
