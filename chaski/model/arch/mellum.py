"""Mellum 2 (JetBrains 2026): Qwen 3 with experts, and windows in layers whose rope is not scaled."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, RouterConfig
from chaski.model.arch import deepseek, llama, qwen3
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router
from chaski.model.rope import RopeConfig
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "mellum",
    "Mellum 2",
    tools=("hermes",),
    thinking=("hermes",),
    reads=("attention.sliding_window", "rope.freq_base_swa"),
)


class Model(deepseek.Model, WindowedModel):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        self._near_base = file.get(f"{file.architecture}.rope.freq_base_swa", float, 0.0)
        super().__init__(file, projector)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, qwen3.Attention(self.config), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SOFTMAX, normalized=True)

    def near_rope(self) -> Rope:
        c = self.config.rope
        return RopeConfig(c.dims, self._near_base or c.base).rope(neox=True)

    def far_rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
