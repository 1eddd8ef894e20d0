"""Images in sequences: the positions of the rows of each image.

A row stands among the ids of a sequence as a number below 0 that no other row of any image has, made of the
content of the image. So all that compares tokens compares images: the prompt cache above all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chaski.chat.groups import Groups
from chaski.model.multimodal import Image

__all__ = ["ImageRun", "Images", "attended_in", "entries", "moved_down", "rows_in", "whole"]

_ROW_BITS = 20


@dataclass(frozen=True, slots=True)
class ImageRun:
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


def attended_in(images: Images, positions: range) -> ImageRun | None:
    """The first image at `positions` that a token stands for and layers attend to."""
    return next((run for run in rows_in(images, positions) if run.image.token is not None), None)


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
