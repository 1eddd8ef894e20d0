"""Building the caches for the layers of a model, and the memory that they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from chaski.kvcache.base import Cache, KVTypes
from chaski.kvcache.causal import CausalCache
from chaski.kvcache.encoder import EncoderCache
from chaski.kvcache.kinds import CacheSize, Causal, Encoder, LayerKind, Recurrent
from chaski.kvcache.recurrent import RecurrentCache
from chaski.kvcache.wrapper import WrapperCache
from chaski.ml.backend import Backend, ByDevice, summed

__all__ = ["KindMemory", "build_cache", "cache_memory"]


def build_cache(backend: Backend, layers: Sequence[LayerKind], size: CacheSize, types: KVTypes) -> Cache:
    """A cache for the layers of each kind; where there are several, one around them.

    Raises OutOfMemoryError.
    """
    groups = _groups(layers)
    caches = [_build(backend, group, size, types) for group in groups]
    if len(caches) == 1:
        return caches[0]
    kinds = {number: kind for kind, group in enumerate(groups) for number in group}
    return WrapperCache(caches, [kinds[number] for number in range(len(layers))])


class KindMemory(Struct, frozen=True):
    """The memory for the layers of one kind. `cells` are the rows of each layer's storage."""

    kind: str
    layers: int
    cells: int
    num_bytes: ByDevice


def cache_memory(
    backend: Backend, layers: Sequence[LayerKind], size: CacheSize, types: KVTypes
) -> list[KindMemory]:
    """The memory of each cache that `build_cache` would make. Allocates nothing."""
    return [_memory(backend, group, size, types) for group in _groups(layers)]


def _memory(backend: Backend, group: _Group, size: CacheSize, types: KVTypes) -> KindMemory:
    kind = next(iter(group.values()))
    cells = kind.num_cells(size, backend.cache_config)
    num_bytes = summed(
        backend.kv_bytes(row.role, row.cells or cells, row.heads, row.size, row.dtype, number)
        for number, layer in group.items()
        for row in layer.rows(types, size)
    )
    return KindMemory(str(kind), len(group), cells, num_bytes)


_Group = Mapping[int, LayerKind]
"""Layers that share a cache, by their numbers."""


def _groups(layers: Sequence[LayerKind]) -> list[_Group]:
    """The layers that share a cache: their heads may differ, but not which tokens they keep.

    Recurrent ones come last. They never refuse a batch, so their states never have to be taken back.
    """
    groups: dict[str, dict[int, LayerKind]] = {}
    for number, layer in enumerate(layers):
        groups.setdefault(str(layer), {})[number] = layer
    return sorted(groups.values(), key=lambda group: isinstance(next(iter(group.values())), Recurrent))


def _build(backend: Backend, group: _Group, size: CacheSize, types: KVTypes) -> Cache:
    layers, numbers = list(group.values()), list(group)
    match layers[0]:
        case Causal(span=span):
            shapes = [layer.shape for layer in layers if isinstance(layer, Causal)]
            return CausalCache(
                backend,
                shapes,
                size.sequences,
                size.capacity,
                types,
                max_batch=size.max_batch,
                span=span,
                layers=numbers,
            )
        case Encoder(max_rows=max_rows, row_size=row_size):
            shapes = [layer.shape for layer in layers if isinstance(layer, Encoder)]
            return EncoderCache(backend, shapes, max_rows, row_size, size.sequences, types, numbers)
        case Recurrent():
            recurrent = [layer for layer in layers if isinstance(layer, Recurrent)]
            return RecurrentCache(backend, recurrent, size.sequences, numbers)
