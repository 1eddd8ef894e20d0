"""Part of a cache: the layers that a second program computes with, ahead of the model's own batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.kvcache.base import Cache
from chaski.kvcache.batch import Batch
from chaski.kvcache.causal import CausalCache
from chaski.kvcache.wrapper import WrapperCache
from chaski.ml.graph import Dim, Graph

__all__ = ["CachePart", "StoredPart"]

I32 = npt.NDArray[np.int32]


class CachePart:
    """The layers with these numbers in the model, whose caches can take back any batch.

    Tokens that are written here are in none of the other layers. They are taken back before the next batch of
    the whole cache is prepared.
    """

    def __init__(self, cache: Cache, layers: Sequence[int]) -> None:
        caches = cache.caches if isinstance(cache, WrapperCache) else (cache,)
        kinds = cache.kinds if isinstance(cache, WrapperCache) else (0,) * (max(layers) + 1)
        self._caches = {kind: caches[kind] for kind in sorted({kinds[layer] for layer in layers})}
        self._places = [(kinds[layer], kinds[:layer].count(kinds[layer])) for layer in layers]

    def record(self, graph: Graph, tokens: Dim) -> list[Any]:
        """Declare the inputs of the caches in `graph` -> one interface per layer, as `Cache.record` does."""
        faces = {kind: cache.record(graph, tokens, f"{kind}.") for kind, cache in self._caches.items()}
        return [faces[kind][index] for kind, index in self._places]

    def length(self, sequence: int) -> int:
        """The number of tokens of `sequence`."""
        return next(iter(self._caches.values())).length(sequence)

    def positions(self, batch: Batch) -> I32:
        """The positions at which the tokens of a batch are computed."""
        return batch.positions

    def start_forward(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        """Make room for the batch; returns the inputs that `record` declared."""
        return {
            f"{kind}.{name}": value
            for kind, cache in self._caches.items()
            for name, value in cache.start_forward(batch).items()
        }

    def undo_forward(self, batch: Batch) -> None:
        """Take back `start_forward` of this batch, and of all that followed it."""
        for cache in self._caches.values():
            cache.undo_forward(batch)


class StoredPart(CachePart):
    """The layers with these numbers in the model, which a second program reads, and adds nothing to.

    However many tokens it computes, they stand at the position of the next token of their sequence, and see
    what that token will see before itself.
    """

    def __init__(self, cache: Cache, layers: Sequence[int]) -> None:
        super().__init__(cache, layers)
        self._causal = {kind: each for kind, each in self._caches.items() if isinstance(each, CausalCache)}
        assert self._causal.keys() == self._caches.keys(), "other layers have no keys and values to read"

    def record(self, graph: Graph, tokens: Dim) -> list[Any]:
        faces = {kind: cache.record_stored(graph, tokens, f"{kind}.") for kind, cache in self._causal.items()}
        return [faces[kind][index] for kind, index in self._places]

    def positions(self, batch: Batch) -> I32:
        return np.array([self.length(sequence) for sequence in batch.sequences.tolist()], np.int32)

    def start_forward(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        return {
            f"{kind}.{name}": value
            for kind, cache in self._causal.items()
            for name, value in cache.seen_next(batch.sequences).items()
        }

    def undo_forward(self, batch: Batch) -> None:
        """Do nothing: nothing was added."""
