"""Attention for models: store this batch's keys and values, then attend to all visible tokens."""

from __future__ import annotations

from typing import Protocol

from chaski.ml import ops
from chaski.ml.graph import AnyMask, Tensor, Weight

__all__ = ["History", "SharedHistory", "attend", "attention"]


class History(Protocol):
    """The interface of a layer's cache of keys and values, such as `chaski.kvcache.LayerCache`."""

    def update(self, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, AnyMask]:
        """Store k and v of this batch; return all keys, all values, and the mask."""


class SharedHistory:
    """A history that several layers share. The first one stores to it, and the others `attend`."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._stored: tuple[Tensor, Tensor, AnyMask] | None = None

    def update(self, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, AnyMask]:
        self._stored = self._history.update(k, v)
        return self._stored

    def read(self) -> tuple[Tensor, Tensor, AnyMask]:
        """Return the result of the last `update`."""
        assert self._stored is not None, "the layer that stores comes first"
        return self._stored


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    history: History,
    *,
    scale: float,
    sinks: Weight | None = None,
    softcap: float = 0.0,
    bias: ops.DistanceBias | None = None,
) -> Tensor:
    """Return softmax(scale · q kᵀ + bias) v over the tokens that each token sees -> (n, heads · value size).

    q (n, heads, size), k (n, kv_heads, size), v (n, kv_heads, value size): each group of heads/kv_heads query
    heads shares a key/value head (Ainslie et al. 2023). v is None where values are the ends of keys.
    sinks (heads,): a learned score of each head that takes part in the softmax without a value, so that a
    head may attend to nothing (gpt-oss; Xiao et al. 2023).
    softcap: scores become softcap · tanh(score / softcap), before sinks; 0 leaves them unchanged (Gemma 2).
    bias: numbers that are added to scores by the distance of a key; None adds nothing.

    The backend decides whether to compute the fused or the plain form, see `BackendOptions`.
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
    """Attend to stored keys and values, as `attention` does after `History.update`."""
    keys, values, mask = stored
    attended = ops.attention(q, keys, values, mask, scale, sinks, softcap, bias)
    heads, value_size = attended.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(value_size, int)
    return attended.reshape(heads * value_size)
