"""The images of a batch: what a sequence gives it, and the rows that were encoded last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.chat.image_rows import ImageRun, Images, attended_in, rows_in
from chaski.kvcache.batch import AttendedImage
from chaski.model.encoder import EncoderProgram
from chaski.model.multimodal import EncoderShape, Image

__all__ = ["EncodedImages", "ImagePart", "image_part"]

F32 = npt.NDArray[np.float32]

_MIN_CACHE_BYTES = 64 << 20


class ImagePart(Struct, frozen=True):
    """The part of its images that a sequence gives a batch.

    runs      rows of images, in the order in which the batch needs them
    places    positions in the sequence whose embeddings rows of `runs` replace
    attended  images that layers attend to, one at most
    """

    runs: Sequence[ImageRun]
    places: Sequence[int]
    attended: Sequence[AttendedImage]


def image_part(images: Images, positions: range, restored: range, slot: int) -> ImagePart:
    """Return what a batch of the tokens at `positions` needs of the images of a sequence.

    The batch needs the rows among its tokens. It also needs the last image that layers attend to, if the
    image's token is one of `restored`, which end where the batch begins: rows are not restored with tokens.

    slot  number of the sequence in the batch
    """
    runs = list(rows_in(images, positions))
    if positions.start == restored.stop and not attended_in(images, positions[:1]):
        runs += attended_in(images, restored)[-1:]
    places: list[int] = []
    attended = []
    for run in runs:
        if run.image.token is None:
            places += run.positions
            continue
        position = run.positions.start
        first = attended_in(images, range(position + 1))[0].positions.start
        attended.append(AttendedImage(slot, position, run.image.num_rows, first))
    return ImagePart(runs, places, attended)


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
        return max(_MIN_CACHE_BYTES, (parallel + 1) * 4 * shape.max_tiles * shape.max_rows * shape.row_size)

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
