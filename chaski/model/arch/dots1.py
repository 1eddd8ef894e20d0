"""dots.llm1 (Huo et al. 2025): Qwen 3's attention, leading dense layers, experts chosen with a bias."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import RouterConfig
from chaski.model.arch import deepseek, llama, qwen3
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router

ARCHITECTURE = Architecture("dots1", "dots.llm1", tools=("dots",), reads=("leading_dense_block_count",))


class Model(deepseek.Model):
    def layer(self, file: GGUFFile) -> llama.Layer:
        return llama.Layer(self.config, qwen3.Attention(self.config), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=True)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
