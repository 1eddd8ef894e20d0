"""Kimi K2.5's image encoder (Kimi Team 2026): that of Kimi-VL, with more patches.

Files have queries and keys in another order: the pairs that rotate by columns are before those of rows.
"""

from __future__ import annotations

import numpy as np

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.model.projectors.moonvit import kimivl
from chaski.model.projectors.qwenvl.one_frame import position_shape

_MOST_PATCHES = 16384


class Vision(kimivl.Vision):
    marks = ("<|media_begin|>image<|media_content|>", "<|media_end|>")
    most_patches = _MOST_PATCHES

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        super().__init__(file, row_size)
        weight, side = self.v.position_embd.weight, self._side
        weight.stored = side, side, self._config.hidden_size

    def read_side(self, file: GGUFFile) -> int:
        rows, *others = position_shape(file)
        if len(others) != 2 or others[0] != rows:
            raise ModelError(
                f"{file.path}: v.position_embd.weight has the shape {(rows, *others)}; its first two sides "
                "must be equal"
            )
        return rows

    def rope(self) -> Rope:
        frequencies = self.frequencies()
        count = len(frequencies)
        return Rope(np.concatenate([frequencies, frequencies]), axes=(1,) * count + (0,) * count)
