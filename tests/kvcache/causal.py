"""Causal caches without values, and the cells that their masks show."""

from __future__ import annotations

import numpy as np

from chaski.kvcache import AttentionSpan, CausalCache, KVShape, KVTypes
from chaski.kvcache.batch import Batch
from chaski.ml.graph import DType, Rope
from chaski.ml.reference import ReferenceBackend

EVERYTHING = AttentionSpan()
ROTATION = Rope(np.array([0.3], np.float32))


def make(
    sequences: int = 2,
    capacity: int = 8,
    max_batch: int = 16,
    span: AttentionSpan = EVERYTHING,
    rotation: Rope | None = ROTATION,
) -> CausalCache:
    backend, shapes = ReferenceBackend(), [KVShape(1, 2, 2, rotation)]
    return CausalCache(
        backend, shapes, sequences, capacity, KVTypes(DType.F32, DType.F32), max_batch=max_batch, span=span
    )


def batch(*tokens: tuple[int, int], ends: list[int] | None = None) -> Batch:
    """Return a batch of (sequence, position) pairs."""
    sequences, positions = np.array(tokens, np.int32).T
    groups = None if ends is None else np.array(ends, np.int32)
    return Batch(np.zeros_like(positions), positions, sequences, np.zeros(0, np.int32), groups)


def tokens(sequence: int, begin: int, end: int) -> list[tuple[int, int]]:
    return [(sequence, position) for position in range(begin, end)]


def visible(cache: CausalCache, *tokens: tuple[int, int], ends: list[int] | None = None) -> list[list[int]]:
    """Return the cells that each token of a batch sees."""
    inputs = cache.start_forward(batch(*tokens, ends=ends))
    return [inputs["history"][begin:end].tolist() for begin, end, _ in inputs["spans"]]


def crowd(cache: CausalCache, sequence: int = 1, max_batch: int = 8) -> None:
    """Fill the cache with a sequence until it is full, so that all sequences are trimmed."""
    while cache.num_free >= max_batch:
        length = cache.length(sequence)
        visible(cache, *tokens(sequence, length, length + max_batch))
    visible(cache, *tokens(sequence, cache.length(sequence), cache.length(sequence) + max_batch))
