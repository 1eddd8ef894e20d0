"""Attention whose result is multiplied by gates, which the states choose."""

from __future__ import annotations

from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Linear, attention
from chaski.model.arch import llama
from chaski.model.config import DecoderConfig

__all__ = ["GatedAttention", "gated"]


def gated(attended: Tensor, gates: Tensor, num_heads: int) -> Tensor:
    """Multiply heads (n, size) by `gates`, one for each element (n, size) or one for each head (n, heads)."""
    if gates.shape == attended.shape:
        return ops.multiply(attended, gates)
    size = attended.shape[1]
    assert isinstance(size, int)
    return ops.scale_rows(attended.reshape(num_heads, size // num_heads), gates).reshape(size)


class GatedAttention(llama.Attention):
    """Llama's attention, whose result is multiplied by the sigmoid of gates.

    gates: their number, one for each head or one for each element.
    """

    def __init__(self, config: DecoderConfig, gates: int) -> None:
        super().__init__(config)
        self.attn_gate = Linear(config.hidden_size, gates)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        attended = attention(q, k, v, cache, scale=c.head_size**-0.5)
        return self.attn_output(gated(attended, ops.sigmoid(self.attn_gate(x)), c.num_heads))
