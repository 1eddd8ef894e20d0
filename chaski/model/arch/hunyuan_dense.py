"""Hunyuan, dense (Tencent 2025): each head of queries and keys is normalized after it is rotated."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import attention
from chaski.model.arch import llama, qwen2, qwen3
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture(
    "hunyuan-dense",
    "Hunyuan 0.5B to 7B, Hunyuan MT",
    tools=("hunyuan-a13b",),
    thinking=("hunyuan-a13b",),
    notes="A context does not shift, because stored keys are normalized after their rotation.",
)


class Attention(qwen3.Attention):
    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope))
        k = self.attn_k_norm(ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(qwen2.Model):
    def layer(self, file: GGUFFile) -> llama.Layer:
        return llama.Layer(self.config, Attention(self.config), self.ffn(file))

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [Causal(self.config.kv_shape())] * self.config.num_layers
