"""AFMoE (Arcee AI 2025): gated attention in a window, with a rope, or of all tokens, without one; experts."""

from __future__ import annotations

import math

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, Linear, RouterConfig, SandwichLayer, attention
from chaski.model.arch import deepseek, qwen3
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.rope import NO_ROPE
from chaski.model.windowed import WindowedModel, rotated

ARCHITECTURE = Architecture(
    "afmoe",
    "Trinity",
    tools=("hermes",),
    thinking=("hermes",),
    reads=("attention.sliding_window", "leading_dense_block_count"),
)


class Attention(qwen3.Attention):
    """Attention with a norm of each head, whose result is multiplied by the sigmoid of a gate."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_gate = Linear(config.hidden_size, config.num_heads * config.value_size)

    def __call__(self, x: Tensor, rope: Tensor | None, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x).reshape(c.num_heads, c.head_size))
        k = self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        k, q = rotated(k, rope), rotated(q, rope)
        attended = attention(q, k, v, cache, scale=c.head_size**-0.5)
        return self.attn_output(ops.multiply(attended, ops.sigmoid(self.attn_gate(x))))


class Model(deepseek.Model, WindowedModel):
    def layer(self, file: GGUFFile) -> DecoderLayer:
        c = self.config
        return SandwichLayer(c.hidden_size, c.eps, Attention(c), self.ffn(file), None)

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=False)

    def embed(self, inputs: Inputs) -> Tensor:
        x = super().embed(inputs)
        return x * math.sqrt(self.config.hidden_size)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)

    def far_rope(self) -> Rope:
        return NO_ROPE
