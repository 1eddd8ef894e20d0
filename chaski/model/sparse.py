"""DeepSeek sparse attention (DeepSeek-AI 2025): an indexer scores keys, and attention reads the best ones.

An indexer has a few query heads and one key head of its own, whose keys are stored like those of a layer. Its
cache is an additional one after those of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import KVShape, LayerCache, RecurrentLayer
from chaski.ml import ops
from chaski.ml.graph import AnyMask, Rope, Tensor
from chaski.ml.nn import LayerNorm, Linear, Module, RMSNorm
from chaski.ml.recurrent_ops import CHUNK

__all__ = [
    "BlockIndexer",
    "HeadIndexer",
    "Indexer",
    "IndexerConfig",
    "SparseHistory",
    "TailIndexer",
    "delayed_table",
    "read_block",
    "sparse_histories",
]

_EPS = 1e-6  # of the norm of keys, whatever that of the other norms


class IndexerConfig(Struct, frozen=True):
    """The query heads of an indexer, the size of a head, and the number of keys that it chooses."""

    heads: int
    head_size: int
    count: int

    @classmethod
    def read(cls, file: GGUFFile) -> IndexerConfig:
        """Read the sizes. Raises ModelError for a missing one."""
        prefix = f"{file.architecture}.attention.indexer"
        names = ("head_count", "key_length", "top_k")
        return cls(*(file.get(f"{prefix}.{name}", int) for name in names))

    def kv_shape(self, rope: Rope | None) -> KVShape:
        """Return the storage of an indexer's keys, which has no values beside them."""
        return KVShape(1, self.head_size, self.head_size, rope, values_in_keys=True)


class SparseHistory:
    """A layer's history, of which attention reads what an indexer chose.

    `index` is the cache of the layer's indexer. A layer without an indexer reads what the indexer of the
    `earlier` layer chose.
    """

    def __init__(
        self, history: LayerCache, index: LayerCache | None, earlier: SparseHistory | None = None
    ) -> None:
        assert index is not None or earlier is not None, "the first layer has no indexer"
        self._history, self._index, self._earlier = history, index, earlier
        self._own: AnyMask | None = None

    def choose(self, q: Tensor, weights: Tensor | None, k: Tensor, **choice: Any) -> None:
        """Store an indexer's keys k (n, 1, size), and choose as `ops.choose_cells` does."""
        assert self._index is not None, "the layer has no indexer"
        keys, _, mask = self._index.update(k, None)
        self._own = ops.choose_cells(q, weights, keys, mask, **choice)

    @property
    def chosen(self) -> AnyMask:
        """The cells that the indexer has chosen, as a mask."""
        if self._index is None and self._earlier is not None:
            return self._earlier.chosen
        assert self._own is not None, "the indexer comes first"
        return self._own

    def update(self, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, AnyMask]:
        """Store k and v as `LayerCache` does; attention sees the chosen keys."""
        keys, values, _ = self._history.update(k, v)
        return keys, values, self.chosen


def sparse_histories(caches: Sequence[LayerCache], has_indexer: Sequence[bool]) -> list[SparseHistory]:
    """Return the histories of layers: first the layers' caches, then one for each indexer."""
    indexes = iter(caches[len(has_indexer) :])
    histories: list[SparseHistory] = []
    for cache, has_own in zip(caches, has_indexer, strict=False):
        earlier = histories[-1] if histories else None
        histories.append(SparseHistory(cache, next(indexes) if has_own else None, earlier))
    return histories


class Indexer(Module):
    """The indexer of a layer with latent attention, whose queries come from the latents of queries."""

    def __init__(self, config: IndexerConfig, size: int, query_rank: int, eps: float = _EPS) -> None:
        c = self._config = config
        self.attn_q_b = Linear(query_rank, c.heads * c.head_size)
        self.attn_k = Linear(size, c.head_size)
        self.k_norm = LayerNorm(c.head_size, eps)
        self.proj = Linear(size, c.heads)

    def __call__(self, x: Tensor, latents: Tensor, rope: Tensor, history: SparseHistory) -> None:
        """Choose the keys for rows of x (n, size); `latents` (n, query rank) are those of their queries."""
        c = self._config
        q = self.turned(self.attn_q_b(latents).reshape(c.heads, c.head_size), rope)
        k = self.turned(self.k_norm(self.attn_k(x)).reshape(1, c.head_size), rope)
        history.choose(q, self.proj(x) * c.heads**-0.5, k, count=c.count, scale=c.head_size**-0.5)

    def turned(self, x: Tensor, rope: Tensor) -> Tensor:
        """Return heads x (n, heads, size) with the turned elements first."""
        return ops.rope(x, rope)


class TailIndexer(Indexer):
    """The same where the rope turns the last elements of a head."""

    def turned(self, x: Tensor, rope: Tensor) -> Tensor:
        size, dims = self._config.head_size, 2 * int(rope.shape[2])  # type: ignore[arg-type]
        tail, rest = ops.slice(x, size - dims, dims), ops.slice(x, 0, size - dims)
        return ops.concat([(ops.rope(tail, rope), 0, 1), (rest, dims, 1)])


def read_block(file: GGUFFile) -> int:
    """Return the number of tokens that share a key of an indexer. Raises UnsupportedError for too many."""
    key = f"{file.architecture}.attention.compress_ratios"
    block = max(map(int, file.get(key, list[int])), default=0)
    if not 2 <= block <= CHUNK:
        raise UnsupportedError(f"{file.path}: {key}: {block} is not supported; supported: 2 to {CHUNK}")
    return block


def delayed_table(table: Tensor, delay: int, cache: RecurrentLayer) -> Tensor:
    """Return for each token the `rope_table` of the token `delay` positions before it."""
    _, two, pairs = table.shape
    assert isinstance(two, int)
    assert isinstance(pairs, int)
    filter = np.zeros((two * pairs, delay + 1), np.float32)
    filter[:, 0] = 1
    flat = table.reshape(two * pairs)
    earlier = ops.chunked_conv(flat, filter, cache.states[0], cache.rows[0], cache.segments)
    return earlier.reshape(two, pairs)


class BlockIndexer(Module):
    """An indexer that chooses blocks of tokens, whose keys are the means of the tokens' (Qwen Team 2026).

    `config.count` is the number of chosen tokens. A block's key is rotated as that of its first token, and
    stored with its last one.
    """

    def __init__(self, config: IndexerConfig, block: int, size: int, eps: float) -> None:
        c = self._config = config
        self._block = block
        self.q_proj = Linear(size, c.heads * c.head_size)
        self.k_proj = Linear(size, c.head_size)
        self.q_norm = RMSNorm(c.head_size, eps)
        self.k_norm = RMSNorm(c.head_size, eps)

    def __call__(
        self, x: Tensor, ropes: tuple[Tensor, Tensor], history: SparseHistory, cache: RecurrentLayer
    ) -> None:
        """Choose the keys for rows of x (n, size). `ropes` are those of the token and of a block's first."""
        c, block = self._config, self._block
        q = ops.rope(self.q_norm(self.q_proj(x).reshape(c.heads, c.head_size)), ropes[0])
        filter = np.full((c.head_size, block), 1 / block, np.float32)
        states, rows = cache.states[0], cache.rows[0]
        mean = ops.chunked_conv(self.k_proj(x), filter, states, rows, cache.segments)
        k = ops.rope(self.k_norm(mean).reshape(1, c.head_size), ropes[1])
        history.choose(q, None, k, count=c.count // block, scale=c.head_size**-0.5, block=block)


class HeadIndexer(Module):
    """An indexer each of whose heads chooses blocks of tokens for a key/value head (MiniMax 2026).

    A block has the highest score of its tokens. The last `local` blocks are chosen first.
    """

    def __init__(self, config: IndexerConfig, block: int, local: int, size: int, eps: float) -> None:
        c = self._config = config
        self._choice = {"count": c.count, "block": block, "local": local}
        self.q_proj = Linear(size, c.heads * c.head_size)
        self.k_proj = Linear(size, c.head_size)
        self.q_norm = RMSNorm(c.head_size, eps)
        self.k_norm = RMSNorm(c.head_size, eps)

    def __call__(self, x: Tensor, rope: Tensor, index: LayerCache) -> list[AnyMask]:
        """Store the keys for rows of x (n, size), and return what each head chooses."""
        c = self._config
        q = ops.rope(self.q_norm(self.q_proj(x).reshape(c.heads, c.head_size)), rope)
        k = ops.rope(self.k_norm(self.k_proj(x)).reshape(1, c.head_size), rope)
        keys, _, mask = index.update(k, None)
        flat = q.reshape(c.heads * c.head_size)
        heads = [ops.slice(flat, head * c.head_size, c.head_size) for head in range(c.heads)]
        return [
            ops.choose_cells(head.reshape(1, c.head_size), None, keys, mask, scale=1.0, **self._choice)
            for head in heads
        ]
