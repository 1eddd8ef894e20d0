"""Attention as models call it: store this batch's keys and values, look at all that each token sees."""

from __future__ import annotations

from typing import Protocol

from chaski.ml import ops
from chaski.ml.graph import AnyMask, Tensor, Weight

__all__ = ["History", "SharedHistory", "attend", "attention"]


class History(Protocol):
    """A layer's cache of keys and values, as attention uses it; `chaski.kvcache.LayerCache` is one."""

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, AnyMask]:
        """Store k and v of this batch; return all keys, all values, and the mask."""


class SharedHistory:
    """A layer's history that layers after it read as well: the first one stores, the others `attend`."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._stored: tuple[Tensor, Tensor, AnyMask] | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, AnyMask]:
        self._stored = self._history.update(k, v)
        return self._stored

    def read(self) -> tuple[Tensor, Tensor, AnyMask]:
        """Return what `update` has returned."""
        assert self._stored is not None, "the layer that stores comes first"
        return self._stored


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    history: History,
    *,
    scale: float,
    sinks: Weight | None = None,
    softcap: float = 0.0,
    bias: ops.DistanceBias | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ + bias) v over what each token sees -> (n, heads · value size).

    q (n, heads, size), k (n, kv_heads, size), v (n, kv_heads, value size): each group of heads/kv_heads query
    heads shares a key/value head (Ainslie et al. 2023).
    sinks (heads,): a learned score of each head that takes its share of the softmax and has no value, so that
    a head may look at nothing (gpt-oss; Xiao et al. 2023).
    softcap: scores become softcap · tanh(score / softcap), before sinks; 0 leaves them (Gemma 2).
    bias: numbers for the distance of a key; without one, the score is that of the product alone.

    Whether it is computed in the fused or the plain form is the backend's affair, see `BackendOptions`.
    """
    return attend(q, history.update(k, v), scale=scale, sinks=sinks, softcap=softcap, bias=bias)


def attend(
    q: Tensor,
    stored: tuple[Tensor, Tensor, AnyMask],
    *,
    scale: float,
    sinks: Weight | None = None,
    softcap: float = 0.0,
    bias: ops.DistanceBias | None = None,
) -> Tensor:
    """Look at keys and values that are stored, as `attention` does after `History.update`."""
    keys, values, mask = stored
    attended = ops.attention(q, keys, values, mask, scale, sinks, softcap, bias)
    heads, value_size = attended.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(value_size, int)
    return attended.reshape(heads * value_size)
