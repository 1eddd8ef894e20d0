"""Kimi-VL's image encoder (Kimi Team 2025, arXiv 2504.07491).

Patches are rotated by column and row in turn. Pictures are shrunk if they have too many patches, and never
enlarged.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.image import HALF, PatchLimits, Pixels, Values, most_padded_squares, on_padded_squares
from chaski.ml.graph import Rope
from chaski.ml.nn.rope import rope_frequencies
from chaski.model.multimodal import EncoderShape
from chaski.model.projectors.qwenvl import one_frame
from chaski.model.projectors.qwenvl.encoder import VisionConfig

_MOST_PATCHES = 4096
_LONGEST_SIDE = 512  # patches


class Vision(one_frame.Vision):
    """`most_patches`: the limit if the file defines none."""

    marks = ("<|media_start|>image<|media_content|>", "<|media_end|>")
    has_grid = False
    taps = 4
    most_patches = _MOST_PATCHES

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        config = VisionConfig.read(file, normal=HALF, most_rows=self.most_patches)
        super().__init__(config, row_size, self.read_side(file))
        largest = file.get(f"{file.architecture}.vision.image_max_pixels", int, 0)
        count = largest // config.patch_size**2 or self.most_patches
        most = most_padded_squares(config.square, count, _LONGEST_SIDE)
        self._patch_limits = PatchLimits(count, _LONGEST_SIDE, most)

    def read_side(self, file: GGUFFile) -> int:
        """Return the rows, and columns, of the position table. Raises ModelError for another form."""
        return one_frame.flat_side(file)

    @property
    def shape(self) -> EncoderShape:
        rows = self._patch_limits.squares
        return replace(super().shape, max_patches=rows * self._config.patches_a_row, max_rows=rows)

    def limit_to(self, context: int) -> None:
        squares = min(self._patch_limits.squares, max(context // 2, 1))
        self._patch_limits = replace(self._patch_limits, squares=squares)

    def resized(self, pixels: Pixels) -> Values:
        c = self._config
        return on_padded_squares(pixels, c.patch_size, c.square, self._patch_limits, c.normal)

    def rope(self) -> Rope:
        """Return a rope whose pairs rotate by a patch's column and row in turn."""
        frequencies = self.frequencies()
        return Rope(frequencies.repeat(2), axes=(1, 0) * len(frequencies))

    def frequencies(self) -> npt.NDArray[np.float32]:
        """Return the frequencies of the pairs of one axis."""
        return rope_frequencies(self._config.head_size // 2, self._config.rope_base)
