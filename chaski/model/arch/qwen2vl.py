"""Qwen 2-VL and 2.5-VL, text (Wang et al. 2024, Bai et al. 2025): Qwen 2, rotated by three coordinates."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.model.arch import qwen2
from chaski.model.architecture import Architecture
from chaski.model.projectors import WITH_COORDINATES
from chaski.model.rope import read_axes

ARCHITECTURE = Architecture(
    "qwen2vl",
    "Qwen 2-VL and 2.5-VL",
    tools=("hermes",),
    notes="Pictures, not videos; Ollama's files say `qwen25vl`. A picture takes at most half of the context.",
)


class Model(qwen2.Model):
    """Qwen 2-VL. Without an encoder, a token's coordinates all equal its position, as in Qwen 2."""

    projectors = WITH_COORDINATES

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        pairs = self.config.rope.dims // 2
        self._axes = None if self.vision is None else read_axes(file, pairs, [16, 24, 24])

    def rope(self) -> Rope:
        return replace(super().rope(), axes=self._axes)
