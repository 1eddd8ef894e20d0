"""OLMoE (Muennighoff et al. 2024): norms over all queries and all keys; weights not summing to 1."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import RMSNorm, attention
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import experts, read_router

ARCHITECTURE = Architecture("olmoe", "OLMoE")


class Attention(llama.Attention):
    """Attention whose queries are normalized together before they are split into heads, and so the keys."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q_norm = RMSNorm(config.num_heads * config.head_size, config.eps)
        self.attn_k_norm = RMSNorm(config.num_kv_heads * config.head_size, config.eps)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x)).reshape(c.num_heads, c.head_size)
        k = self.attn_k_norm(self.attn_k(x)).reshape(c.num_kv_heads, c.head_size)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        k, q = ops.rope(k, rope), ops.rope(q, rope)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(llama.Model):
    def layer(self, file: GGUFFile) -> llama.Layer:
        return llama.Layer(self.config, Attention(self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        return experts(file, self.config, read_router(file, Gating.SOFTMAX, normalized=False))

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
