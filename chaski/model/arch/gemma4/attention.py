"""Gemma 4's attention: every layer computes queries; only the layers that store compute keys and values."""

from __future__ import annotations

from chaski.kvcache import StoredLayer
from chaski.ml import ops
from chaski.ml.graph import AnyMask, Tensor
from chaski.ml.nn import Linear, Module, RMSNorm, SharedHistory, attend
from chaski.model.config import DecoderConfig


class Queries(Module):
    """The part of attention that all layers share. Scores are not scaled."""

    inline = True

    def __init__(self, config: DecoderConfig) -> None:
        self._config = c = config
        self.attn_q = Linear(c.hidden_size, c.num_heads * c.head_size)
        self.attn_q_norm = RMSNorm(c.head_size, c.eps)
        self.attn_output = Linear(c.num_heads * c.head_size, c.hidden_size)

    def attend(self, x: Tensor, rope: Tensor, stored: tuple[Tensor, Tensor, AnyMask]) -> Tensor:
        q = self.attn_q_norm(self.attn_q(x).reshape(self._config.num_heads, self._config.head_size))
        return self.attn_output(attend(ops.rope(q, rope), stored, scale=1.0))


class Attention(Queries):
    """Attention that stores. Without a value matrix, values are the keys before their norm and rope."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        size = config.num_kv_heads * config.head_size
        self.attn_k = Linear(config.hidden_size, size)
        self.attn_v = Linear(config.hidden_size, size, optional=True)
        self.attn_k_norm = RMSNorm(config.head_size, config.eps)

    def __call__(self, x: Tensor, rope: Tensor, history: SharedHistory) -> Tensor:
        heads = self._config.num_kv_heads, self._config.head_size
        k = v = self.attn_k(x)
        if self.attn_v.weight.is_present:
            v = self.attn_v(x)
        k = ops.rope(self.attn_k_norm(k.reshape(*heads)), rope)
        v = ops.rms_norm(v.reshape(*heads), None, self._config.eps)
        return self.attend(x, rope, history.update(k, v))


class SharedAttention(Queries):
    """Attention to an earlier layer's keys and values; checkpoints still contain unused matrices for them."""

    unused = ("attn_k.", "attn_v.", "attn_k_norm.")

    def __call__(self, x: Tensor, rope: Tensor, history: SharedHistory | StoredLayer) -> Tensor:
        return self.attend(x, rope, history.read())
