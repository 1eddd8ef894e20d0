"""Several caches as one: a model whose layers are of different kinds has a cache for each kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from chaski.kvcache.base import Cache, LeafCache
from chaski.kvcache.batch import Batch
from chaski.ml.graph import Dim, Graph

__all__ = ["WrapperCache"]


class WrapperCache:
    """`caches` with one entry a kind; `kinds` has for each layer the index of its cache.

    Each cache holds the layers of its kind, in their order. All caches hold the same sequences: what one of
    them refuses does not happen in any.
    """

    def __init__(self, caches: Sequence[Cache], kinds: Sequence[int]) -> None:
        assert set(kinds) <= set(range(len(caches))), f"layers of kinds {set(kinds)}, {len(caches)} caches"
        self.caches = tuple(caches)
        self.kinds = tuple(kinds)

    def record(self, graph: Graph, tokens: Dim, prefix: str = "") -> Sequence[Any]:
        layers = [
            iter(cache.record(graph, tokens, f"{prefix}{kind}.")) for kind, cache in enumerate(self.caches)
        ]
        return [next(layers[kind]) for kind in self.kinds]

    @property
    def num_droppable(self) -> int:
        return min(cache.num_droppable for cache in self.caches)

    @property
    def overwrites(self) -> bool:
        return any(cache.overwrites for cache in self.caches)

    def length(self, sequence: int) -> int:
        return self.caches[0].length(sequence)

    def start_forward(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        values: dict[str, npt.NDArray[Any]] = {}
        for kind, cache in enumerate(self.caches):
            try:
                own = cache.start_forward(batch)
            except BaseException:
                for started in reversed(self.caches[:kind]):
                    started.undo_forward(batch)
                raise
            values |= {f"{kind}.{name}": value for name, value in own.items()}
        return values

    def undo_forward(self, batch: Batch) -> None:
        for cache in reversed(self.caches):
            cache.undo_forward(batch)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        length = self.shareable(source, length)
        for cache in self.caches:
            cache.copy_prefix(source, target, length)

    def can_resume(self, sequence: int, position: int) -> bool:
        return all(cache.can_resume(sequence, position) for cache in self.caches)

    def resumable(self, sequence: int, position: int) -> int:
        while not self.can_resume(sequence, position):
            position = min(cache.resumable(sequence, position) for cache in self.caches)
        return position

    def shareable(self, sequence: int, position: int) -> int:
        while (least := min(cache.shareable(sequence, position) for cache in self.caches)) < position:
            position = least
        return position

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        for cache in self.caches:
            cache.check_remove(sequence, begin, end)

    def remove(self, sequence: int, begin: int, end: int | None = None, distance: int | None = None) -> None:
        self.check_remove(sequence, begin, end)
        length = self.length(sequence)
        is_tail = begin < length and (end is None or end >= length)
        if is_tail:
            begin, end = self.resumable(sequence, begin), None
        for cache in self.caches:
            cache.remove(sequence, begin, end, distance)

    def first_shared(self, sequence: int, begin: int) -> int:
        return min(cache.first_shared(sequence, begin) for cache in self.caches)

    def forget(self, sequences: Iterable[int]) -> None:
        forgotten = tuple(sequences)
        for cache in self.caches:
            cache.forget(forgotten)

    @property
    def leaves(self) -> Sequence[LeafCache]:
        return [leaf for cache in self.caches for leaf in cache.leaves]

    def close(self) -> None:
        for cache in self.caches:
            cache.close()
