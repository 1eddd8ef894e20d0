"""Hunyuan A13B (Tencent 2025): heads are normalized after they are rotated, and a shared expert."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import RouterConfig, attention
from chaski.model.arch import deepseek, llama, qwen3
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router

ARCHITECTURE = Architecture(
    "hunyuan-moe",
    "Hunyuan A13B",
    tools=("hunyuan",),
    thinking=("hunyuan",),
    notes="Contexts do not shift, because the norms of keys follow their rope.",
)


class Attention(qwen3.Attention):
    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(deepseek.Model):
    def layer(self, file: GGUFFile) -> llama.Layer:
        return llama.Layer(self.config, Attention(self.config), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SOFTMAX, normalized=True)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)

    def layer_kinds(self) -> Sequence[LayerKind]:
        # Keys cannot be moved: the elements of a pair have different weights.
        return [Causal(self.config.kv_shape())] * self.config.num_layers
