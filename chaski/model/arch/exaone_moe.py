"""K-EXAONE (LG AI Research 2026): layers within a window rotate their keys, and all others see all tokens."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, RouterConfig
from chaski.model.arch import deepseek, exaone4, llama
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router
from chaski.model.rope import NO_ROPE
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "exaone-moe",
    "K-EXAONE",
    tools=("hermes",),
    thinking=("hermes",),
    reads=("attention.sliding_window", "leading_dense_block_count", "nextn_predict_layers"),
)


class Model(deepseek.Model, WindowedModel):
    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, exaone4.Attention(self.config), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=False)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True, factors=self.rope_freqs.weight.array)

    def far_rope(self) -> Rope:
        return NO_ROPE
