"""Spark X2.5 (iFlytek 2026): Llama with GeGLU, gates of heads, and layers with a window and another rope."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Rope
from chaski.ml.nn import DecoderLayer, SwiGLU
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.gates import GatedAttention
from chaski.model.rope import RopeConfig
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "spark2_5",
    "Spark X2.5",
    notes="GELU is the error function's, as in the release; llama.cpp approximates it by tanh.",
    reads=(
        "attention.sliding_window",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
    ),
)


class Model(WindowedModel):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        prefix = f"{file.architecture}.rope"
        self._near_base = file.get(f"{prefix}.freq_base_swa", float, 0.0)
        self._near_dims = file.get(f"{prefix}.dimension_count_swa", int, 0)
        super().__init__(file, projector)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, GatedAttention(self.config, self.config.num_heads), self.ffn(file))

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        return SwiGLU(self.config.hidden_size, self.config.ffn_size, ops.erf_geglu)

    def near_rope(self) -> Rope:
        c = self.config.rope
        return RopeConfig(self._near_dims or c.dims, self._near_base or c.base).rope(neox=True)

    def far_rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
