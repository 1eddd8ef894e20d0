"""Latent attention, MLA (DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434), in its absorbed form.

All heads share one key of `rope + rank` elements: a part that the rope turns, and the latent, from which each
head would compute its own keys and values. Instead, each head multiplies its query by its key matrix, and the
sum over latents by its value matrix. Prompts and single tokens are computed alike, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn.attention import History, attention
from chaski.ml.nn.layers import Linear, RMSNorm
from chaski.ml.nn.module import Module

__all__ = ["LatentAttention", "LatentConfig"]


class LatentConfig(Struct, frozen=True):
    """The sizes of latent attention.

    rank         elements of the latent
    query_rank   elements between the two matrices of queries, 0 for one matrix
    rope, plain  elements of a query that the rope turns, and others
    value        elements of a head's value
    scale        the factor of scores
    eps          the epsilon of the norms of latents
    """

    size: int
    heads: int
    rank: int
    query_rank: int
    rope: int
    plain: int
    value: int
    scale: float
    eps: float


class _HeadLinear(Module):
    """A matrix for each head. Files store them as a stack (heads, out, in)."""

    def __init__(self, heads: int, in_features: int, out_features: int) -> None:
        self.heads = [Linear(in_features, out_features) for _ in range(heads)]

    def joined_weights(self, prefix: str = "") -> Iterator[tuple[str, list[tuple[str, Weight]]]]:
        parts = [(f"{prefix}.heads.{index}.weight", head.weight) for index, head in enumerate(self.heads)]
        yield f"{prefix}.weight", parts

    def __call__(self, x: Tensor, first: int = 0) -> Sequence[Tensor]:
        """Multiply a part of each head of x (n, heads, size), which begins at `first` -> (n, out) each."""
        count, size = x.shape[1:]
        assert isinstance(count, int)
        assert isinstance(size, int)
        rows = x.reshape(count * size)
        return [
            head(ops.slice(rows, index * size + first, head.weight.shape[1]))
            for index, head in enumerate(self.heads)
        ]


class LatentAttention(Module):
    """Attention whose history has one head: keys of `rope + rank` elements, values of `rank`.

    The part that the rope turns comes first, so that stored keys can be turned to other positions.
    """

    inline = True

    def __init__(self, config: LatentConfig) -> None:
        c = self._config = config
        queries = c.heads * (c.plain + c.rope)
        if c.query_rank:
            self.attn_q_a = Linear(c.size, c.query_rank)
            self.attn_q_a_norm = RMSNorm(c.query_rank, c.eps)
            self.attn_q_b = Linear(c.query_rank, queries)
        else:
            self.attn_q = Linear(c.size, queries)
        self.attn_kv_a_mqa = Linear(c.size, c.rank + c.rope)
        self.attn_kv_a_norm = RMSNorm(c.rank, c.eps)
        self.attn_k_b = _HeadLinear(c.heads, c.plain, c.rank)
        self.attn_v_b = _HeadLinear(c.heads, c.rank, c.value)
        self.attn_output = Linear(c.heads * c.value, c.size)

    def __call__(self, x: Tensor, rope: Tensor, cache: History) -> Tensor:
        c = self._config
        compressed = self.attn_kv_a_mqa(x)
        latent = self.attn_kv_a_norm(ops.slice(compressed, 0, c.rank))
        key = ops.concat([(ops.slice(compressed, c.rank, c.rope), 0, 1), (latent, c.rope, 1)])
        k = ops.rope(key.reshape(1, c.rope + c.rank), rope)
        q = ops.rope(self._queries(x), rope)
        attended = attention(q, k, latent.reshape(1, c.rank), cache, scale=c.scale)
        values = self.attn_v_b(attended.reshape(c.heads, c.rank))
        return self.attn_output(_side_by_side(values))

    def _queries(self, x: Tensor) -> Tensor:
        """Return the queries for latents (n, heads, rope + rank), before they are turned."""
        c = self._config
        q = self.attn_q_b(self.attn_q_a_norm(self.attn_q_a(x))) if c.query_rank else self.attn_q(x)
        size = c.plain + c.rope
        turned = [ops.slice(q, head * size + c.plain, c.rope) for head in range(c.heads)]
        latents = self.attn_k_b(q.reshape(c.heads, size))
        parts = [part for pair in zip(turned, latents, strict=True) for part in pair]
        return _side_by_side(parts).reshape(c.heads, c.rope + c.rank)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Return rows of all parts (n, size), one after the other."""
    placed, first = list[tuple[Tensor, int, int]](), 0
    for part in parts:
        placed.append((part, first, 1))
        size = part.shape[1]
        assert isinstance(size, int)
        first += size
    return ops.concat(placed)
