"""Images in sequences: the positions and coordinates of the rows of each image.

A row stands among the ids of a sequence as a number below 0 that no other row of any image has, made of the
content of the image. So all that compares tokens compares images: the prefix cache above all.

The position of a token is its number in the sequence. Some models turn queries and keys by three coordinates
instead: time, row and column (m-rope, Wang et al. 2024, arXiv 2409.12191). The coordinates of a token of text
are one number three times, and those of the next token are one more. An image whose rows stand in a grid
begins at the number that a token would have there, n: its row (i, j) has (n, n + i, n + j), and text after
it continues at n plus the longer side of the grid, however many rows there are. So coordinates follow from
the images before a token, and can be derived from its sequence: they are not stored. Dropping whole images
and text lowers all three coordinates of what follows by the same number, its `extent`. A video is an image of
several grids, one for each pair of frames, with the text of its time before each. The rows of another image
may have `steps` instead of a grid: one number three times, which rows may share.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.chat.groups import Groups
from chaski.model.multimodal import Image

__all__ = [
    "ImageRun",
    "Images",
    "attended_in",
    "coordinates",
    "entries",
    "extent",
    "moved_down",
    "place",
    "rows_in",
    "whole",
]

_ROW_BITS = 20


class ImageRun(Struct, frozen=True):
    """Rows of an image, from `first_row` on, at `positions` of a sequence."""

    positions: range
    image: Image
    first_row: int = 0

    def within(self, positions: range) -> ImageRun | None:
        """Return the part of the run in `positions`; None if there is none."""
        begin = max(self.positions.start, positions.start)
        end = min(self.positions.stop, positions.stop)
        if begin >= end:
            return None
        return ImageRun(range(begin, end), self.image, self.first_row + begin - self.positions.start)


Images = tuple[ImageRun, ...]
"""Runs of a sequence, in order."""


def entries(run: ImageRun) -> list[int]:
    """Return the ids, all below 0, that represent the rows among the tokens of a sequence."""
    first = run.image.digest << _ROW_BITS | run.first_row
    return [-1 - (first + index) for index in range(len(run.positions))]


def rows_in(images: Images, positions: range) -> Iterator[ImageRun]:
    """Yield the runs of rows at `positions`."""
    for run in images:
        part = run.within(positions)
        if part is not None:
            yield part


def coordinates(images: Images, positions: range, count: int = 3) -> npt.NDArray[np.int32]:
    """Return time, row and column of each of these positions of a sequence: (n, 3).

    count: 4 for models whose grids are numbered: position, column, row, and number of the image.
    """
    found = np.repeat(np.arange(positions.start, positions.stop, dtype=np.int32)[:, None], count, axis=1)
    saved = 0  # by images so far, whose rows need fewer numbers than positions
    for number, run in enumerate(images):
        begin, end = run.positions.start, run.positions.stop
        if begin >= positions.stop:
            break
        if run.image.is_numbered:
            _number(run, number, positions, found)
        elif (run.image.grid is not None or run.image.steps is not None) and end > positions.start:
            rows = np.arange(max(begin, positions.start) - begin, min(end, positions.stop) - begin)
            places = _places(run.image, rows)
            first = begin + int(rows[0]) - positions.start
            found[first : first + len(rows)] = begin - saved + places
        saved += _saved(run)
        found[max(end - positions.start, 0) :] -= _saved(run)
    return found


def _number(run: ImageRun, number: int, positions: range, found: npt.NDArray[np.int32]) -> None:
    """Set the coordinates of a numbered grid, which is within the first and the last row of its image."""
    assert run.image.grid is not None
    begin, end = run.positions.start + 1, run.positions.stop - 1
    inner = range(max(begin, positions.start), min(end, positions.stop))
    row, column = divmod(np.arange(inner.start, inner.stop) - begin, run.image.grid[1])
    part = slice(inner.start - positions.start, max(inner.stop - positions.start, 0))
    if len(inner):
        found[part, 1:] = np.stack([column, row, np.full_like(row, number)], axis=1)


def _places(image: Image, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the coordinates of rows (n, 3), counted from the first row of their part of the image."""
    if image.steps is not None:
        return np.repeat(image.steps[rows, None].astype(np.int64), 3, axis=1)
    assert image.grid is not None
    return np.stack([np.zeros_like(rows), *divmod(rows, image.grid[1])], axis=1)


def place(images: Images, position: int) -> int:
    """Return the number that is each coordinate of a token of text at `position`."""
    return position - sum(_saved(run) for run in images if run.positions.start < position)


def extent(images: Images, positions: range) -> int:
    """Return by how much the coordinates grow over these positions, which cut no image."""
    return len(positions) - sum(_saved(run) for run in rows_in(images, positions))


def _saved(run: ImageRun) -> int:
    """Return how many numbers fewer than positions the rows of an image need."""
    if run.image.steps is not None:
        return len(run.positions) - int(run.image.steps.max()) - 1
    is_shorter = run.image.grid is not None and not run.image.is_numbered
    return len(run.positions) - max(run.image.grid or ()) if is_shorter else 0


def attended_in(images: Images, positions: range) -> list[ImageRun]:
    """Return the images at `positions` that a token stands for and layers attend to."""
    return [run for run in rows_in(images, positions) if run.image.token is not None]


def whole(images: Images) -> Groups:
    """Return the positions of each image, from its first row to its last, text between them included."""
    spans: list[range] = []
    for run in images:
        begin = run.positions.start if run.first_row == 0 else spans.pop().start
        spans.append(range(begin, run.positions.stop))
    return tuple(spans)


def moved_down(images: Images, dropped: range) -> Images:
    """Return the images left without the positions `dropped`, which contain an image or do not touch it."""
    count = len(dropped)
    before = tuple(run for run in images if run.positions.stop <= dropped.start)
    behind = (run for run in images if run.positions.start >= dropped.stop)
    return before + tuple(
        ImageRun(range(run.positions.start - count, run.positions.stop - count), run.image, run.first_row)
        for run in behind
    )
