"""Layers with norms after their blocks, and the selection of rows in a model's last layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaski.ml.graph import Tensor
from chaski.ml.nn.layers import RMSNorm
from chaski.ml.nn.module import Module

__all__ = ["DecoderLayer", "PostNormLayer", "SandwichLayer", "output_rows"]


def output_rows(outputs: Tensor | None, *states: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of `states` that `outputs` lists, or all rows for None (layers before the last)."""
    return states if outputs is None else tuple(state.rows(outputs) for state in states)


class DecoderLayer(Module):
    """A layer of a decoder, which maps states x (n, size) to the next ones. `context`: ropes and a cache.

    `outputs` is None in all layers but the last. The last layer stores the keys and values of all tokens but
    computes only the rows that `outputs` lists: those whose logits the caller requested.
    """

    attn: Callable[..., Tensor]
    ffn: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        raise NotImplementedError


class SandwichLayer(DecoderLayer):
    """A layer of `size` elements with a norm before and after each of its two blocks (Ding et al. 2021).

    attn    the attention block; `context` has its other inputs, such as ropes and a cache
    ffn     the feed-forward block
    window  the number of tokens that attention sees, enforced by the layer's cache; None for all
    """

    def __init__(
        self,
        size: int,
        eps: float,
        attn: Callable[..., Tensor],
        ffn: Callable[[Tensor], Tensor],
        window: int | None,
    ) -> None:
        self.window = window
        self.attn_norm = RMSNorm(size, eps)
        self.attn = attn
        self.post_attention_norm = RMSNorm(size, eps)
        self.ffn_norm = RMSNorm(size, eps)
        self.ffn = ffn
        self.post_ffw_norm = RMSNorm(size, eps)

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + self.post_attention_norm(h)
        return x + self.post_ffw_norm(self.feed_forward(x))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.ffn(self.ffn_norm(x))


class PostNormLayer(DecoderLayer):
    """A layer of `size` elements whose blocks read the states as they are, with a norm after each block.

    attn    the attention block; `context` has its other inputs, such as ropes and a cache
    ffn     the feed-forward block
    """

    def __init__(
        self, size: int, eps: float, attn: Callable[..., Tensor], ffn: Callable[[Tensor], Tensor]
    ) -> None:
        self.attn = attn
        self.post_attention_norm = RMSNorm(size, eps)
        self.ffn = ffn
        self.post_ffw_norm = RMSNorm(size, eps)

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(x, *context), x)
        x = x + self.post_attention_norm(h)
        return x + self.post_ffw_norm(self.ffn(x))
