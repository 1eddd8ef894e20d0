"""Pictures as Qwen's patches: by squares within windows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.image import Values, patches

__all__ = ["Limits", "Patches", "cut_frames"]

I32 = npt.NDArray[np.int32]


class Limits(Struct, frozen=True):
    """The least and the most pixels of a picture after resizing."""

    smallest: int
    largest: int


class Patches(Struct, frozen=True):
    """The patches of an image or of two frames of a video, and where they are.

    pixels   (n, elements of a patch)
    later    (n, elements of a patch): those of the second frame; of an image, the same
    places   (n, 2): row and column of each patch
    windows  (n, 2): for each patch, the first patch of its window and the one after the last
    squares  (square², rows): patch numbers; row i lists patch i of every square
    grid     rows and columns of squares
    """

    pixels: Values
    later: Values
    places: I32
    windows: I32
    squares: I32
    grid: tuple[int, int]


def cut_frames(
    pixels: Values, later: Values | None, patch: int, square: int, window: int | None = None
) -> Patches:
    """Cut an image, or two frames of one size, into patches.

    `window`: squares along a side of one; None: all see each other.
    """
    cut = patches(pixels, patch)
    grid = cut.shape[0] // square, cut.shape[1] // square
    row, column = np.indices(grid, np.int32).reshape(2, -1)
    side = window or max(grid)
    of_window = row // side * (-(-grid[1] // side)) + column // side
    order = np.argsort(of_window, kind="stable")
    corners = np.stack([row, column], axis=1)[order] * square
    inner = np.indices((square, square), np.int32).reshape(2, -1).T
    places = (corners[:, None] + inner).reshape(-1, 2).astype(np.int32)
    counts = np.unique(of_window, return_counts=True)[1] * square**2
    ends = np.cumsum(counts)
    windows = np.stack([ends - counts, ends], axis=1).repeat(counts, axis=0).astype(np.int32)
    first = np.argsort(order) * square**2
    squares = (first + np.arange(square**2)[:, None]).astype(np.int32)
    shown = np.ascontiguousarray(cut[places[:, 0], places[:, 1]])
    second = shown
    if later is not None:
        second = np.ascontiguousarray(patches(later, patch)[places[:, 0], places[:, 1]])
    return Patches(shown, second, places, windows, squares, grid)
