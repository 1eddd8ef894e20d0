"""Orion (OrionStar 2024): Llama with layer norms."""

from __future__ import annotations

from chaski.ml.graph import Rope
from chaski.ml.nn import SwiGLU
from chaski.model.arch import gpt2
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("orion", "Orion 14B")


class Model(gpt2.LayerNormDecoder):
    def ffn(self) -> SwiGLU:
        return SwiGLU(self.config.hidden_size, self.config.ffn_size)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
