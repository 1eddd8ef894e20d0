"""Compressed attention (DeepSeek V4): a window of tokens, and one entry for each group of earlier tokens.

A compressor pools the rows of a group of tokens into an entry by a softmax over each channel. Every token
stores the entry of its group up to itself, so that with the last token of a group its entry is complete. With
groups of 4 tokens, entries overlap, and an indexer with its own compressor chooses the entries that attention
reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, KVShape, LayerCache, LayerKind, RecurrentLayer, pooled
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.nn import GroupedLinear, Linear, Module, RMSNorm
from chaski.ml.recurrent_ops import CHUNK
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs
from chaski.model.rope import RopeConfig
from chaski.model.sparse import IndexerConfig

__all__ = ["CompressedAttention", "CompressedConfig", "Ropes", "read_ratios"]

_OVERLAPPING = 4  # tokens of the groups that overlap and have an indexer
_MEMORY = 4096  # tokens with their keys: prompts often continue from a point before the end


class CompressedConfig(Struct, frozen=True):
    """The sizes of attention. `ratio` is the number of tokens of a group, 0 for a window alone."""

    hidden_size: int
    heads: int
    head_size: int
    query_rank: int
    groups: int
    output_rank: int
    window: int
    ratio: int
    indexer: IndexerConfig
    eps: float

    @classmethod
    def read(cls, file: GGUFFile, config: DecoderConfig, ratio: int) -> CompressedConfig:
        """Read the keys. Raises ModelError for heads that cannot be divided into the output's groups."""
        prefix = f"{file.architecture}.attention"
        groups = file.get(f"{prefix}.output_group_count", int)
        if groups < 1 or config.num_heads % groups:
            raise ModelError(
                f"{file.path}: {prefix}.output_group_count is {groups}, which does not divide the "
                f"{config.num_heads} heads"
            )
        return cls(
            hidden_size=config.hidden_size,
            heads=config.num_heads,
            head_size=config.head_size,
            query_rank=file.get(f"{prefix}.q_lora_rank", int),
            groups=groups,
            output_rank=file.get(f"{prefix}.output_lora_rank", int),
            window=file.get(f"{prefix}.sliding_window", int),
            ratio=ratio,
            indexer=IndexerConfig.read(file),
            eps=config.eps,
        )

    @property
    def overlaps(self) -> bool:
        """Return whether groups overlap, which have an indexer."""
        return self.ratio == _OVERLAPPING

    def kinds(self) -> Iterator[LayerKind]:
        """Yield what the layer keeps: its window, and then entries and what their pools need."""
        shape = KVShape(1, self.head_size, self.head_size, values_in_keys=True)
        yield Causal(shape, AttentionSpan(self.window, memory=max(self.window, _MEMORY)))
        if self.ratio:
            yield Causal(shape)
            yield pooled(self.head_size, 1 + self.overlaps)
        if self.overlaps:
            yield Causal(self.indexer.kv_shape(None))
            yield pooled(self.indexer.head_size, 2)


def read_ratios(file: GGUFFile, num_layers: int) -> list[int]:
    """Return the tokens of a group in each layer. Raises UnsupportedError for groups that do not fit."""
    key = f"{file.architecture}.attention.compress_ratios"
    ratios = [int(ratio) for ratio in file.get(key, list[int])]
    bad = next((ratio for ratio in ratios if ratio and CHUNK % ratio and ratio % CHUNK), None)
    if bad is not None or len(ratios) < num_layers:
        raise UnsupportedError(
            f"{file.path}: {key} has {len(ratios)} numbers for {num_layers} layers, among them "
            f"{bad or 'none wrong'}; supported: 0, and numbers that divide {CHUNK} or are its multiples"
        )
    return ratios[:num_layers]


class Ropes:
    """The tables of a batch for heads whose last elements are rotated, each recorded once.

    `scaled` is for layers with compressors, `plain` for the others.
    """

    def __init__(self, inputs: Inputs, plain: RopeConfig, scaled: RopeConfig) -> None:
        self._inputs = inputs
        self._frequencies = {True: scaled.rope().frequencies, False: plain.rope().frequencies}
        self._tables: dict[Any, Tensor] = {}

    def table(self, size: int, is_scaled: bool, *, back: bool = False, block: int = 1) -> Tensor:
        """Return the table for heads of `size` elements, at the start of blocks of positions.

        `back` turns in the opposite direction.
        """
        key = size, is_scaled, back, block
        if key not in self._tables:
            turned = self._frequencies[is_scaled] * np.float32(-1 if back else 1)
            kept = np.zeros(size // 2 - len(turned), np.float32)
            rope = Rope(np.concatenate([kept, turned]))
            self._tables[key] = ops.rope_table(self._inputs.positions, rope, block)
        return self._tables[key]


class _Place(Module):
    def __init__(self, ratio: int, width: int) -> None:
        self.weight = Weight((ratio, width), host=True)


class Compressor(Module):
    """Pools groups of `ratio` tokens into entries of `size`. Its tensors' names start with `name`."""

    inline = True

    def __init__(self, name: str, hidden_size: int, size: int, ratio: int, inputs: int, eps: float) -> None:
        self._name, self._size, self._ratio = name, size, ratio
        setattr(self, f"{name}_kv", Linear(hidden_size, inputs * size))
        setattr(self, f"{name}_gate", Linear(hidden_size, inputs * size))
        setattr(self, f"{name}_ape", _Place(ratio, inputs * size))
        setattr(self, f"{name}_norm", RMSNorm(size, eps))

    def __call__(self, x: Tensor, ropes: Ropes, cache: RecurrentLayer) -> Tensor:
        """Return for each row of x (n, hidden size) the entry of its group up to itself (n, 1, size)."""
        values, scores, places, norm = (
            getattr(self, f"{self._name}_{part}") for part in ("kv", "gate", "ape", "norm")
        )
        bias = places.weight.elements
        pools = ops.pooling(values(x), scores(x), bias, cache.states[0], cache.rows[0], cache.segments)
        table = ropes.table(self._size, True, block=self._ratio)
        return ops.rope(norm(pools).reshape(1, self._size), table)


class EntryIndexer(Module):
    """Chooses entries. Its queries come from the latents of queries, its keys from another compressor."""

    def __init__(self, config: CompressedConfig) -> None:
        c = self._config = config
        self.attn_q_b = Linear(c.query_rank, c.indexer.heads * c.indexer.head_size)
        self.proj = Linear(c.hidden_size, c.indexer.heads)

    def __call__(self, x: Tensor, latents: Tensor, k: Tensor, ropes: Ropes, cache: LayerCache) -> Any:
        """Store keys k (n, 1, size), and return the mask of the chosen entries."""
        c = self._config.indexer
        table = ropes.table(c.head_size, True)
        q = ops.rope(self.attn_q_b(latents).reshape(c.heads, c.head_size), table)
        keys, _, mask = cache.update(k, None)
        weights = self.proj(x) * c.heads**-0.5
        ratio = self._config.ratio
        return ops.choose_cells(q, weights, keys, mask, count=c.count, scale=c.head_size**-0.5, block=ratio)


class _Sinks(Module):
    def __init__(self, heads: int) -> None:
        self.weight = Weight((heads,))


class CompressedAttention(Module):
    """Attention with one head whose keys are its values, to a window and to the entries of groups.

    Rotations that values have from being keys are turned back in the result. The output is a product in
    groups of heads, and then one of all.
    """

    inline = True

    def __init__(self, config: CompressedConfig) -> None:
        c = self._config = config
        self.attn_q_a = Linear(c.hidden_size, c.query_rank)
        self.attn_q_a_norm = RMSNorm(c.query_rank, c.eps)
        self.attn_q_b = Linear(c.query_rank, c.heads * c.head_size)
        self.attn_kv = Linear(c.hidden_size, c.head_size)
        self.attn_kv_a_norm = RMSNorm(c.head_size, c.eps)
        self.attn_sinks = _Sinks(c.heads)
        size = c.heads * c.head_size // c.groups
        self.output_groups = GroupedLinear("attn_output_a", c.groups, size, c.output_rank)
        self.attn_output_b = Linear(c.groups * c.output_rank, c.hidden_size)
        inputs = 1 + c.overlaps
        if c.ratio:
            self.entries = Compressor("attn_compressor", c.hidden_size, c.head_size, c.ratio, inputs, c.eps)
        if c.overlaps:
            size = c.indexer.head_size
            self.indexer = EntryIndexer(c)
            self.indexer_entries = Compressor(
                "indexer_compressor", c.hidden_size, size, c.ratio, inputs, c.eps
            )

    def __call__(self, x: Tensor, ropes: Ropes, caches: Sequence[Any]) -> Tensor:
        """`caches` are those of the configuration's `kinds`, in the same order."""
        c = self._config
        table = ropes.table(c.head_size, bool(c.ratio))
        latents = self.attn_q_a_norm(self.attn_q_a(x))
        q = ops.rms_norm(self.attn_q_b(latents).reshape(c.heads, c.head_size), None, c.eps)
        k = self.attn_kv_a_norm(self.attn_kv(x)).reshape(1, c.head_size)
        window = caches[0].update(ops.rope(k, table), None)
        y = self._attended(x, latents, ops.rope(q, table), window, ropes, caches[1:])
        y = ops.rope(y, ropes.table(c.head_size, bool(c.ratio), back=True))
        return self.attn_output_b(self.output_groups(y.reshape(c.heads * c.head_size)))

    def _attended(
        self, x: Tensor, latents: Tensor, q: Tensor, window: Any, ropes: Ropes, caches: Sequence[Any]
    ) -> Tensor:
        c, sinks = self._config, self.attn_sinks.weight
        scale = c.head_size**-0.5
        if not c.ratio:
            keys, values, mask = window
            return ops.attention(q, keys, values, mask, scale, sinks)
        entries, _, seen = caches[0].update(self.entries(x, ropes, caches[1]), None)
        if c.overlaps:
            keys = self.indexer_entries(x, ropes, caches[3])
            seen = self.indexer(x, latents, keys, ropes, caches[2])
        return ops.entry_attention(
            q, window, (entries, seen), length=c.window, block=c.ratio, scale=scale, sinks=sinks
        )


def of_layers(file: GGUFFile, config: DecoderConfig) -> list[CompressedConfig]:
    """Return the configuration of attention in each layer."""
    ratios = read_ratios(file, config.num_layers)
    first = CompressedConfig.read(file, config, 0)
    return [replace(first, ratio=ratio) for ratio in ratios]
