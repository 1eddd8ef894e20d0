"""Latent attention, MLA (DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434), in its absorbed form.

All heads share one key of `rope + rank` elements: a part that the rope turns, and the latent, from which each
head would compute its own keys and values. Instead, each head multiplies its query by its key matrix, and the
sum over latents by its value matrix. Prompts and single tokens are computed alike, so the bits are the same.

The cache holds each latent twice, in the keys and as the values. The products of each head are operations of
their own, which limits the speed of models with many heads and layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn.attention import History, attention
from chaski.ml.nn.layers import Linear, RMSNorm, TransposedLinear
from chaski.ml.nn.module import Module

__all__ = ["JoinedLatentAttention", "LatentAttention", "LatentConfig"]


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

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        """Multiply the first elements of each head of x (n, heads, size) -> (n, out) each."""
        return _each_head(x, self.heads, self.heads[0].weight.shape[1])


class _JoinedHeads(Module):
    """The matrix from latents to keys and values: rows of a head's key, of its value, and so on.

    A query multiplies the rows of its key from the left, so these are not quantized in memory.
    """

    def __init__(self, heads: int, rank: int, plain: int, value: int) -> None:
        self._plain, self._rank = plain, rank
        self.keys = [TransposedLinear(plain, rank) for _ in range(heads)]
        self.values = [Linear(rank, value) for _ in range(heads)]

    def joined_weights(self, prefix: str = "") -> Iterator[tuple[str, list[tuple[str, Weight]]]]:
        parts = list[tuple[str, Weight]]()
        for index, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            parts.append((f"{prefix}.keys.{index}.weight", key.weight))
            parts.append((f"{prefix}.values.{index}.weight", value.weight))
        yield f"{prefix}.weight", parts

    def absorbed(self, q: Tensor) -> Sequence[Tensor]:
        return _each_head(q, self.keys, self._plain)

    def of_latents(self, attended: Tensor) -> Sequence[Tensor]:
        return _each_head(attended, self.values, self._rank)


def _each_head(x: Tensor, matrices: Sequence[Callable[[Tensor], Tensor]], size: int) -> Sequence[Tensor]:
    """Multiply the first `size` elements of each head of x (n, heads, …) by the head's own matrix."""
    heads, width = x.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(width, int)
    rows = x.reshape(heads * width)
    return [matrix(ops.slice(rows, head * width, size)) for head, matrix in enumerate(matrices)]


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
        self.add_matrices(c)
        self.attn_output = Linear(c.heads * c.value, c.size)

    def add_matrices(self, c: LatentConfig) -> None:
        """Declare the matrices of the heads."""
        self.attn_k_b = _HeadLinear(c.heads, c.plain, c.rank)
        self.attn_v_b = _HeadLinear(c.heads, c.rank, c.value)

    def absorbed(self, q: Tensor) -> Sequence[Tensor]:
        """Return for each head its query, (n, heads, plain + rope), times its key matrix (n, rank)."""
        return self.attn_k_b(q)

    def of_latents(self, attended: Tensor) -> Sequence[Tensor]:
        """Return for each head its value (n, value) of a sum over latents (n, heads, rank)."""
        return self.attn_v_b(attended)

    def query_latents(self, x: Tensor) -> Tensor:
        """Return the rows between the two matrices of queries (n, query rank)."""
        return self.attn_q_a_norm(self.attn_q_a(x))

    def __call__(
        self,
        x: Tensor,
        rope: Tensor | None,
        cache: History,
        factors: Tensor | None = None,
        latents: Tensor | None = None,
    ) -> Tensor:
        """Attend for rows of x (n, size).

        `factors` (n, 1) multiply the queries of each row. `latents` are `query_latents(x)` where a caller
        needs these, too.
        """
        c = self._config
        compressed = self.attn_kv_a_mqa(x)
        latent = self.attn_kv_a_norm(ops.slice(compressed, 0, c.rank))
        key = ops.concat([(ops.slice(compressed, c.rank, c.rope), 0, 1), (latent, c.rope, 1)])
        k = ops.rope(key.reshape(1, c.rope + c.rank), rope)
        q = ops.rope(self._queries(x, latents), rope)
        q = q if factors is None else ops.scale_rows(q, factors)
        attended = attention(q, k, latent.reshape(1, c.rank), cache, scale=c.scale)
        values = self.of_latents(attended.reshape(c.heads, c.rank))
        return self.attn_output(_side_by_side(values))

    def _queries(self, x: Tensor, latents: Tensor | None) -> Tensor:
        """Return the queries for latents (n, heads, rope + rank), before they are turned."""
        c = self._config
        q = self.attn_q_b(latents or self.query_latents(x)) if c.query_rank else self.attn_q(x)
        size = c.plain + c.rope
        turned = [ops.slice(q, head * size + c.plain, c.rope) for head in range(c.heads)]
        latents = self.absorbed(q.reshape(c.heads, size))
        parts = [part for pair in zip(turned, latents, strict=True) for part in pair]
        return _side_by_side(parts).reshape(c.heads, c.rope + c.rank)


class JoinedLatentAttention(LatentAttention):
    """The same for files with one matrix for keys and values, `attn_kv_b`."""

    def add_matrices(self, c: LatentConfig) -> None:
        self.attn_kv_b = _JoinedHeads(c.heads, c.rank, c.plain, c.value)

    def absorbed(self, q: Tensor) -> Sequence[Tensor]:
        return self.attn_kv_b.absorbed(q)

    def of_latents(self, attended: Tensor) -> Sequence[Tensor]:
        return self.attn_kv_b.of_latents(attended)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Return rows of all parts (n, size), one after the other."""
    placed, first = list[tuple[Tensor, int, int]](), 0
    for part in parts:
        placed.append((part, first, 1))
        size = part.shape[1]
        assert isinstance(size, int)
        first += size
    return ops.concat(placed)
