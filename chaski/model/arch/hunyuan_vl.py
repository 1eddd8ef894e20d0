"""HunyuanOCR, text (Tencent 2025, arXiv 2511.19575): Hunyuan, dense, with another base of the rope.

Tokens of text have equal coordinates, so their rope is that of one position.
"""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.model.arch import hunyuan_dense
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig

ARCHITECTURE = Architecture(
    "hunyuan_vl",
    "HunyuanOCR, text",
    notes="No pictures. A context does not shift, because stored keys are normalized after their rotation.",
    reads=("rope.scaling.alpha",),
)


class Model(hunyuan_dense.Model):
    def read_config(self, file: GGUFFile) -> DecoderConfig:
        """Read the configuration. Its factor alpha extends the context by a larger base of the rope."""
        config = super().read_config(file)
        alpha, size = file.get(f"{file.architecture}.rope.scaling.alpha", float, 0.0), config.head_size
        if alpha <= 0:
            return config
        rope = replace(config.rope, base=config.rope.base * alpha ** (size / (size - 2)))
        return replace(config, rope=rope)
