"""Attention as models call it: store this batch's keys and values, look at all that each token sees."""

from __future__ import annotations

from typing import Protocol

from chaski.ml import ops
from chaski.ml.graph import AnyMask, Tensor, Weight

__all__ = ["History", "attention"]


class History(Protocol):
    """A layer's cache of keys and values, as attention uses it; `chaski.kvcache.LayerCache` is one."""

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, AnyMask]:
        """Store k and v of this batch; return all keys, all values, and the mask."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    history: History,
    *,
    scale: float,
    sinks: Weight | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """softmax(scale · q kᵀ) v over what each token sees -> (n, heads · value size).

    q (n, heads, size), k (n, kv_heads, size), v (n, kv_heads, value size): each group of heads/kv_heads query
    heads shares a key/value head (Ainslie et al. 2023).
    sinks (heads,): a learned score of each head that takes its share of the softmax and has no value, so that
    a head may look at nothing (gpt-oss; Xiao et al. 2023).
    softcap: scores become softcap · tanh(score / softcap), before sinks; 0 leaves them (Gemma 2).

    Whether it is computed in the fused or the plain form is the backend's affair, see `BackendOptions`.
    """
    keys, values, mask = history.update(k, v)
    attended = ops.attention(q, keys, values, mask, scale, sinks, softcap)
    heads, value_size = attended.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(value_size, int)
    return attended.reshape(heads * value_size)
