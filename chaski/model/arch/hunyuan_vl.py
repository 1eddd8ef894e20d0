"""HunyuanOCR, text (Tencent 2025, arXiv 2511.19575): Hunyuan, dense, rotated by four coordinates.

They are the position, the column and row in an image, and the number of the image. Without an encoder, all
equal the position.
"""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.model.arch import hunyuan_dense
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.projectors import WITH_COORDINATES
from chaski.model.rope import read_four_axes

ARCHITECTURE = Architecture(
    "hunyuan_vl",
    "HunyuanOCR",
    notes="A context does not shift, because stored keys are normalized after their rotation.",
    reads=("rope.scaling.alpha",),
)


class Model(hunyuan_dense.Model):
    projectors = WITH_COORDINATES

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        pairs = self.config.rope.dims // 2
        self._axes = None if self.vision is None else read_four_axes(file, pairs)

    def rope(self) -> Rope:
        return replace(super().rope(), axes=self._axes)

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        """Read the configuration. Its factor alpha extends the context by a larger base of the rope."""
        config = super().read_config(file)
        alpha, size = file.get(f"{file.architecture}.rope.scaling.alpha", float, 0.0), config.head_size
        if alpha <= 0:
            return config
        rope = replace(config.rope, base=config.rope.base * alpha ** (size / (size - 2)))
        return replace(config, rope=rope)
