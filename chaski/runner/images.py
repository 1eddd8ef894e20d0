"""Images in sequences: which positions hold which rows of an image, and the rows that were encoded last.

A sequence's tokens are ids, and for each row of an image a number below 0 that no other row of any image has,
made of the image's content. So all that compares tokens compares images: the prompt cache above all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chaski.model.encoder import EncoderProgram
from chaski.model.multimodal import EncoderShape, Image
from chaski.runner.groups import Groups

__all__ = ["EncodedImages", "ImageRun", "Images", "attended_in", "entries", "moved_down", "rows_in", "whole"]

F32 = npt.NDArray[np.float32]

_MIN_CACHE_BYTES = 64 << 20
_ROW_BITS = 20


@dataclass(frozen=True, slots=True)
class ImageRun:
    """Rows of an image, from `first_row` on, at `positions` of a sequence."""

    positions: range
    image: Image
    first_row: int = 0

    def within(self, positions: range) -> ImageRun | None:
        """The part of it that is in `positions`."""
        begin = max(self.positions.start, positions.start)
        end = min(self.positions.stop, positions.stop)
        if begin >= end:
            return None
        return ImageRun(range(begin, end), self.image, self.first_row + begin - self.positions.start)


Images = tuple[ImageRun, ...]
"""Those of a sequence, in order."""


def entries(run: ImageRun) -> list[int]:
    """What stands for the rows among the tokens of a sequence."""
    first = run.image.digest << _ROW_BITS | run.first_row
    return [-1 - (first + index) for index in range(len(run.positions))]


def rows_in(images: Images, positions: range) -> Iterator[ImageRun]:
    """The rows that stand at `positions`."""
    for run in images:
        part = run.within(positions)
        if part is not None:
            yield part


def attended_in(images: Images, positions: range) -> ImageRun | None:
    """The first image at `positions` that a token stands for and layers attend to."""
    return next((run for run in rows_in(images, positions) if run.image.token is not None), None)


def whole(images: Images) -> Groups:
    """The positions of each image, from its first row to its last, with the text that may stand between."""
    spans: list[range] = []
    for run in images:
        begin = run.positions.start if run.first_row == 0 else spans.pop().start
        spans.append(range(begin, run.positions.stop))
    return tuple(spans)


def moved_down(images: Images, dropped: range) -> Images:
    """The images that are left without the positions `dropped`, which contain an image or do not touch it."""
    count = len(dropped)
    before = tuple(run for run in images if run.positions.stop <= dropped.start)
    behind = (run for run in images if run.positions.start >= dropped.stop)
    return before + tuple(
        ImageRun(range(run.positions.start - count, run.positions.stop - count), run.image, run.first_row)
        for run in behind
    )


class EncodedImages:
    """The encoder, and the rows that it made of the images that were used last, `max_bytes` of them at most.

    An image of a sequence that is computed is always among them, with room for one of each of `parallel`.
    """

    def __init__(self, encoder: EncoderProgram, parallel: int) -> None:
        self.max_bytes = self.bytes_for(encoder.shape, parallel)
        self.num_encoded = 0
        self._encoder = encoder
        self._rows: OrderedDict[int, F32] = OrderedDict()
        self._bytes = 0

    @staticmethod
    def bytes_for(shape: EncoderShape, parallel: int) -> int:
        """The most that rows may take."""
        return max(_MIN_CACHE_BYTES, (parallel + 1) * 4 * shape.max_rows * shape.row_size)

    @property
    def row_size(self) -> int:
        """Elements of a row."""
        return self._encoder.shape.row_size

    def rows(self, image: Image) -> F32:
        """The rows of an image, encoded now if they are not there. Nothing may be computed meanwhile."""
        if image.digest not in self._rows:
            self._add(image, self._encoder.encode(image))
        self._rows.move_to_end(image.digest)
        return self._rows[image.digest]

    def fill(self, rows: F32, runs: Iterable[ImageRun]) -> None:
        """Write the rows of runs, one after the other."""
        begin = 0
        for run in runs:
            count = len(run.positions)
            rows[begin : begin + count] = self.rows(run.image)[run.first_row : run.first_row + count]
            begin += count

    def _add(self, image: Image, rows: F32) -> None:
        self.num_encoded += 1
        self._rows[image.digest] = rows
        self._bytes += rows.nbytes
        while self._bytes > self.max_bytes and len(self._rows) > 1:
            self._bytes -= self._rows.popitem(last=False)[1].nbytes
