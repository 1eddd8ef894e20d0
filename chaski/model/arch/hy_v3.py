"""Hunyuan 3 (Tencent 2026): Qwen 3's attention, experts chosen with a bias, and a shared expert."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope, Weight
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, Module, RouterConfig
from chaski.model.arch import deepseek, llama, qwen3
from chaski.model.architecture import Architecture
from chaski.model.experts import experts, read_router

ARCHITECTURE = Architecture(
    "hy_v3",
    "Hunyuan 3",
    tools=("hunyuan",),
    thinking=("hunyuan",),
    reads=("nextn_predict_layers",),
)


class _Bias(Module):
    """The bias of the choice of experts, which has no suffix in these files."""

    inline = True

    def __init__(self, size: int) -> None:
        self.exp_probs_b = Weight((size,))

    @property
    def bias(self) -> Weight:
        return self.exp_probs_b


class Model(deepseek.Model):
    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, qwen3.Attention(self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        router = self.router(file)
        return experts(file, self.config, router, bias=_Bias(router.num_experts))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=False)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
