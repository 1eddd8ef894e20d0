"""Batches for recurrent caches, whose tests need neither tokens nor logits."""

from __future__ import annotations

import numpy as np

from chaski.kvcache.batch import Batch
from chaski.kvcache.recurrent import RecurrentCache


def batch(cache: RecurrentCache, *counts: tuple[int, int], outputs: bool = False) -> Batch:
    """Return a batch with more tokens of some sequences; `outputs` requests the last output of each."""
    positions = [np.arange(cache.length(s), cache.length(s) + count) for s, count in counts]
    sequences = np.repeat([s for s, _ in counts], [count for _, count in counts]).astype(np.int32)
    everything = np.concatenate(positions).astype(np.int32)
    last = np.cumsum([count for _, count in counts]).astype(np.int32) - 1
    return Batch(everything, everything, sequences, last if outputs else everything[:0])


def forward(cache: RecurrentCache, *counts: tuple[int, int], outputs: bool = False) -> list[list[int]]:
    return cache.start_forward(batch(cache, *counts, outputs=outputs))["segments"].tolist()


def resumable(cache: RecurrentCache, sequence: int = 0) -> list[int]:
    """Return all lengths at which a sequence can be resumed."""
    return [p for p in range(cache.length(sequence) + 2) if cache.can_resume(sequence, p)]
