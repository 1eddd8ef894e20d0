"""K-EXAONE (LG AI Research 2026): layers within a window rotate their keys, and all others see all tokens."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, RouterConfig, attention
from chaski.model.arch import deepseek, llama, qwen3
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router
from chaski.model.rope import NO_ROPE
from chaski.model.windowed import WindowedModel, rotated

ARCHITECTURE = Architecture(
    "exaone-moe",
    "K-EXAONE",
    tools=("hermes",),
    thinking=("hermes",),
    notes="Blocks for multi-token prediction are left out.",
    reads=("attention.sliding_window", "leading_dense_block_count", "nextn_predict_layers"),
)


class Attention(qwen3.Attention):
    """Attention with a norm of each head of queries and keys, for layers that may have no rope."""

    def __call__(self, x: Tensor, rope: Tensor | None, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x).reshape(c.num_heads, c.head_size))
        k = self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        k, q = rotated(k, rope), rotated(q, rope)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(deepseek.Model, WindowedModel):
    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, Attention(self.config), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=False)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True, factors=self.rope_freqs.weight.array)

    def far_rope(self) -> Rope:
        return NO_ROPE
