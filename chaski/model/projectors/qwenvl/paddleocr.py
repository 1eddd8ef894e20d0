"""PaddleOCR-VL's image encoder (Cui et al. 2025, arXiv 2510.14528): SigLIP, rotated by row and column."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.image import HALF, Pixels, Values, in_bounds
from chaski.model.projectors.qwenvl import one_frame
from chaski.model.projectors.qwenvl.encoder import VisionConfig

_FEWEST_ROWS, _MOST_ROWS = 188, 3600


class Vision(one_frame.Vision):
    marks = ("<|IMAGE_START|>", "<|IMAGE_END|>")
    taps = 2

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        config = VisionConfig.read(file, _FEWEST_ROWS, HALF, _MOST_ROWS)
        super().__init__(config, row_size, one_frame.flat_side(file))

    def resized(self, pixels: Pixels) -> Values:
        c, limits = self._config, self._limits
        square = c.patch_size * c.square
        height, width = pixels.shape[:2]
        # The published processor begins with a picture that has a square at least.
        if height < square:
            height, width = square, round(width * square / height)
        if width < square:
            height, width = round(height * square / width), square
        return in_bounds(pixels, square, limits.smallest, limits.largest, c.normal, (height, width))
