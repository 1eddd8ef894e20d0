"""MiniMax M3 (MiniMax 2026): after leading dense layers, sparse attention and experts with a bounded SwiGLU.

Each key/value head has an indexer's head, which chooses the blocks of tokens that its queries attend to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, KVShape, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, RouterConfig, SwiGLU, attend
from chaski.model.arch import deepseek, llama, qwen3
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import experts, read_router
from chaski.model.input import Inputs
from chaski.model.sparse import HeadIndexer, IndexerConfig

ARCHITECTURE = Architecture(
    "minimax-m3",
    "MiniMax M3",
    tools=("minimax-m3",),
    thinking=("minimax-m3",),
    notes="Text only.",
    reads=("leading_dense_block_count",),
)

_ACTIVATION = partial(ops.clamped_swiglu, alpha=1.702, limit=7.0)


class SparseAttention(qwen3.Attention):
    """Attention whose key/value heads have a history each, of which they read what the indexer chooses."""

    def __init__(self, config: DecoderConfig, indexer: HeadIndexer) -> None:
        super().__init__(config)
        self.indexer = indexer

    def __call__(self, x: Tensor, rope: Tensor, caches: Sequence[LayerCache]) -> Tensor:  # type: ignore[override]
        c = self._config
        *histories, index = caches
        chosen = self.indexer(x, rope, index)
        q = ops.rope(self.attn_q_norm(self.attn_q(x).reshape(c.num_heads, c.head_size)), rope)
        k = ops.rope(self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size)), rope)
        v = self.attn_v(x)
        group = c.num_heads // c.num_kv_heads
        parts = list[Tensor]()
        for head, (history, mask) in enumerate(zip(histories, chosen, strict=True)):
            own = _part(q, head, group), _part(k, head, 1), ops.slice(v, head * c.value_size, c.value_size)
            keys, values, _ = history.update(own[1], own[2].reshape(1, c.value_size))
            parts.append(attend(own[0], (keys, values, mask), scale=c.head_size**-0.5))
        width = group * c.value_size
        return self.attn_output(ops.concat([(part, i * width, 1) for i, part in enumerate(parts)]))


def _part(x: Tensor, index: int, heads: int) -> Tensor:
    """Return the `index`-th group of `heads` heads of x (n, …, size)."""
    _, total, size = x.shape
    assert isinstance(total, int)
    assert isinstance(size, int)
    flat = x.reshape(total * size)
    return ops.slice(flat, index * heads * size, heads * size).reshape(heads, size)


class Model(deepseek.Model):
    """The caches after those of the layers are, for each sparse one: its other heads', and the indexer's."""

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        layers = super().layers(file)
        self._index = self._read_indexer(file)
        c = self.config
        for layer in layers:
            if isinstance(layer.ffn, SwiGLU):
                layer.ffn = SwiGLU(c.hidden_size, c.ffn_size, _ACTIVATION)
            else:
                layer.attn = SparseAttention(c, HeadIndexer(*self._index, c.hidden_size, c.eps))
        self._is_sparse = tuple(isinstance(layer.attn, SparseAttention) for layer in layers)
        return layers

    def _read_indexer(self, file: GGUFFile) -> tuple[IndexerConfig, int, int]:
        """Return the sizes of indexers, and the tokens of a block and the local blocks.

        Raises ModelError for other heads than those of keys, UnsupportedError without local blocks.
        """
        prefix = f"{file.architecture}.attention.indexer"
        config = IndexerConfig.read(file)
        block, local = (file.get(f"{prefix}.{name}", int) for name in ("block_size", "local_blocks"))
        if config.heads != self.config.num_kv_heads or block < 1:
            raise ModelError(
                f"{file.path}: {prefix}: {config.heads} heads and blocks of {block} tokens; there must be a "
                f"head for each of {self.config.num_kv_heads} key/value heads, and a token in a block"
            )
        if not 1 <= local <= config.count:
            raise UnsupportedError(
                f"{file.path}: {prefix}.local_blocks = {local} is not supported; supported: 1 to the number "
                f"of chosen blocks, {config.count}"
            )
        return config, block, local

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, qwen3.Attention(self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        return experts(file, self.config, self.router(file), _ACTIVATION, of_shared=_ACTIVATION)

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=True, has_bias=True)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c, rope = self.config, self.rope()
        head = Causal(KVShape(1, c.head_size, c.value_size, rope))
        index = Causal(self._index[0].kv_shape(rope))
        kinds = [
            head if sparse else kind
            for sparse, kind in zip(self._is_sparse, super().layer_kinds(), strict=True)
        ]
        return [*kinds, *[*[head] * (c.num_kv_heads - 1), index] * sum(self._is_sparse)]

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        more = iter(caches[len(self.blk) :])
        histories: list[Any] = [
            [cache, *(next(more) for _ in range(self.config.num_kv_heads))] if sparse else cache
            for sparse, cache in zip(self._is_sparse, caches, strict=False)
        ]
        return super().__call__(inputs, histories)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True, factors=self.rope_freqs.weight.array)
