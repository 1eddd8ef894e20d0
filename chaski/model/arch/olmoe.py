"""OLMoE (Muennighoff et al. 2024): norms over all queries and all keys; weights not summing to 1."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.ml.moe_ops import Gating
from chaski.model.arch import llama
from chaski.model.arch.olmo2 import Attention
from chaski.model.architecture import Architecture
from chaski.model.experts import experts, read_router

ARCHITECTURE = Architecture("olmoe", "OLMoE")


class Model(llama.Model):
    def layer(self, file: GGUFFile) -> llama.Layer:
        return llama.Layer(self.config, Attention(self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        return experts(file, self.config, read_router(file, Gating.SOFTMAX, normalized=False))

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
