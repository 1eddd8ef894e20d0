"""Latent attention, MLA (DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434), in its absorbed form.

All heads share one key of `rope + rank` elements: a part that the rope turns, and the latent, from which each
head would compute its own keys and values. Instead, each head multiplies its query by its key matrix, and the
sum over latents by its value matrix. Prompts and single tokens are computed alike, so the bits are the same.

The cache holds each latent once: the values are the ends of the keys. One operation multiplies all heads. In
files of older converters, which join the matrices of keys and values, each head's product is an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight, width
from chaski.ml.nn.attention import History, attention
from chaski.ml.nn.layers import Linear, RMSNorm, TransposedLinear
from chaski.ml.nn.module import Module
from chaski.ml.products import head_linear

__all__ = [
    "GatedLatentAttention",
    "HeadGatedLatentAttention",
    "JoinedLatentAttention",
    "LatentAttention",
    "LatentConfig",
]


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
    """A matrix for each head, as files store them: (heads, out, in)."""

    def __init__(self, heads: int, in_features: int, out_features: int) -> None:
        self.weight = Weight((heads, out_features, in_features), split=0)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply x (n, heads, in) -> (n, heads, out)."""
        return head_linear(x, self.weight)


class _JoinedHeads(Module):
    """The matrix from latents to keys and values: rows of a head's key, of its value, and so on.

    A query multiplies the rows of its key from the left, so these are not quantized in memory.
    """

    def __init__(self, heads: int, rank: int, plain: int, value: int) -> None:
        self.keys = [TransposedLinear(plain, rank) for _ in range(heads)]
        self.values = [Linear(rank, value) for _ in range(heads)]

    def joined_weights(self, prefix: str = "") -> Iterator[tuple[str, list[tuple[str, Weight]]]]:
        parts = list[tuple[str, Weight]]()
        for index, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            parts.append((f"{prefix}.keys.{index}.weight", key.weight))
            parts.append((f"{prefix}.values.{index}.weight", value.weight))
        yield f"{prefix}.weight", parts

    def absorbed(self, q: Tensor) -> Tensor:
        return _each_head(q, self.keys)

    def of_latents(self, attended: Tensor) -> Tensor:
        return _each_head(attended, self.values)


def _each_head(x: Tensor, matrices: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Multiply each head of x (n, heads, in) by its own matrix -> (n, heads, out)."""
    size = width(x) // len(matrices)
    rows = x.reshape(len(matrices) * size)
    parts = [matrix(ops.slice(rows, head * size, size)) for head, matrix in enumerate(matrices)]
    out = width(parts[0])
    joined = ops.concat([(part, head * out, 1) for head, part in enumerate(parts)])
    return joined.reshape(len(matrices), out)


class LatentAttention(Module):
    """Attention whose history has one head: keys of `rope + rank` elements, which end with the value.

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

    def absorbed(self, q: Tensor) -> Tensor:
        """Multiply the query of each head (n, heads, plain) by its key matrix -> (n, heads, rank)."""
        return self.attn_k_b(q)

    def of_latents(self, attended: Tensor) -> Tensor:
        """Return the values (n, heads, value) of sums over latents (n, heads, rank)."""
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
        k = latent.reshape(1, c.rank)
        if c.rope:
            turned = ops.rope(ops.slice(compressed, c.rank, c.rope).reshape(1, c.rope), rope)
            k = ops.concat([(turned, 0, 1), (k, c.rope, 1)])
        q = self._queries(x, rope, latents)
        q = q if factors is None else ops.scale_rows(q, factors)
        attended = attention(q, k, None, cache, scale=c.scale, sinks=self.sinks())
        values = self.gated(self.of_latents(attended.reshape(c.heads, c.rank)), x)
        return self.attn_output(values.reshape(c.heads * c.value))

    def sinks(self) -> Weight | None:
        """Return the sinks of heads (heads,), if the attention has some."""
        return None

    def gated(self, values: Tensor, x: Tensor) -> Tensor:
        """Return the values of heads (n, heads, value) times their gates for x, if the attention has some."""
        return values

    def _queries(self, x: Tensor, rope: Tensor | None, latents: Tensor | None) -> Tensor:
        """Return the queries for latents (n, heads, rope + rank)."""
        c = self._config
        q = self.attn_q_b(latents or self.query_latents(x)) if c.query_rank else self.attn_q(x)
        heads = q.reshape(c.heads, c.plain + c.rope)
        if not c.rope:
            return self.absorbed(heads)
        turned = ops.rope(ops.slice(heads, c.plain, c.rope), rope)
        return ops.concat([(turned, 0, 1), (self.absorbed(ops.slice(heads, 0, c.plain)), c.rope, 1)])


class GatedLatentAttention(LatentAttention):
    """The same with a gate for each element of the values."""

    def add_matrices(self, c: LatentConfig) -> None:
        super().add_matrices(c)
        self.attn_gate = Linear(c.size, c.heads * c.value)

    def gated(self, values: Tensor, x: Tensor) -> Tensor:
        gates = ops.sigmoid(self.attn_gate(x)).reshape(self._config.heads, self._config.value)
        return ops.multiply(values, gates)


class HeadGatedLatentAttention(LatentAttention):
    """The same with a gate for each head."""

    def add_matrices(self, c: LatentConfig) -> None:
        super().add_matrices(c)
        self.attn_gate = Linear(c.size, c.heads)

    def gated(self, values: Tensor, x: Tensor) -> Tensor:
        return ops.scale_rows(values, ops.sigmoid(self.attn_gate(x)))


class JoinedLatentAttention(LatentAttention):
    """The same for files with one matrix for keys and values, `attn_kv_b`."""

    def add_matrices(self, c: LatentConfig) -> None:
        self.attn_kv_b = _JoinedHeads(c.heads, c.rank, c.plain, c.value)

    def absorbed(self, q: Tensor) -> Tensor:
        return self.attn_kv_b.absorbed(q)

    def of_latents(self, attended: Tensor) -> Tensor:
        return self.attn_kv_b.of_latents(attended)
