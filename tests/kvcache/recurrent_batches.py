"""Batches for recurrent caches, whose tests need neither tokens nor logits."""

from __future__ import annotations

import numpy as np

from chaski.kvcache.batch import Batch
from chaski.kvcache.recurrent import RecurrentCache


def batch(cache: RecurrentCache, *counts: tuple[int, int], outputs: int = 0) -> Batch:
    """Return a batch with more tokens of some sequences, and up to `outputs` last outputs of each."""
    positions = [np.arange(cache.length(s), cache.length(s) + count) for s, count in counts]
    sequences = np.repeat([s for s, _ in counts], [count for _, count in counts]).astype(np.int32)
    everything = np.concatenate(positions).astype(np.int32)
    ends = np.cumsum([count for _, count in counts]).tolist()
    last = [np.arange(end - min(outputs, count), end) for end, (_, count) in zip(ends, counts, strict=True)]
    return Batch(everything, everything, sequences, np.concatenate(last).astype(np.int32))


def forward(cache: RecurrentCache, *counts: tuple[int, int], outputs: int = 0) -> list[list[int]]:
    return cache.start_forward(batch(cache, *counts, outputs=outputs))["segments"].tolist()


def resumable(cache: RecurrentCache, sequence: int = 0) -> list[int]:
    """Return all lengths at which a sequence can be resumed."""
    return [p for p in range(cache.length(sequence) + 2) if cache.can_resume(sequence, p)]
