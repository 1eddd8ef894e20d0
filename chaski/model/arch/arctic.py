"""Arctic (Snowflake 2024): a dense block after attention, and experts that read the layer's input."""

from __future__ import annotations

from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, RMSNorm, RouterConfig, SwiGLU, output_rows
from chaski.model.arch import deepseek, llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router

ARCHITECTURE = Architecture("arctic", "Snowflake Arctic")


class Layer(DecoderLayer):
    def __init__(self, config: DecoderConfig, attn: llama.Attention, experts: llama.FeedForward) -> None:
        size = config.hidden_size
        self.attn_norm = RMSNorm(size, config.eps)
        self.attn = attn
        self.ffn_norm = RMSNorm(size, config.eps)
        self.dense = SwiGLU(size, size)
        self.ffn_norm_exps = RMSNorm(size, config.eps)
        self.experts = experts

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        after = x + h
        return after + self.dense(self.ffn_norm(after)) + self.experts(self.ffn_norm_exps(x))


class Model(deepseek.Model):
    def layer(self, file: GGUFFile) -> Layer:
        return Layer(self.config, llama.Attention(self.config), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SOFTMAX, normalized=True)
