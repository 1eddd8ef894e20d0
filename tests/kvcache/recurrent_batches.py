"""Batches for recurrent caches, whose tests need neither tokens nor logits."""

from __future__ import annotations

import numpy as np

from chaski.kvcache.batch import Batch
from chaski.kvcache.recurrent import RecurrentCache


def batch(cache: RecurrentCache, *counts: tuple[int, int], outputs: bool = False) -> Batch:
    """So many more tokens of some sequences; with `outputs` that of the last token of each is wanted."""
    positions = [np.arange(cache.length(s), cache.length(s) + count) for s, count in counts]
    sequences = np.repeat([s for s, _ in counts], [count for _, count in counts]).astype(np.int32)
    everything = np.concatenate(positions).astype(np.int32)
    last = np.cumsum([count for _, count in counts]).astype(np.int32) - 1
    return Batch(everything, everything, sequences, last if outputs else everything[:0])


def forward(cache: RecurrentCache, *counts: tuple[int, int], outputs: bool = False) -> list[list[int]]:
    return cache.start_forward(batch(cache, *counts, outputs=outputs))["segments"].tolist()


def resumable(cache: RecurrentCache, sequence: int = 0) -> list[int]:
    """All lengths at which a sequence can be resumed."""
    return [p for p in range(cache.length(sequence) + 2) if cache.can_resume(sequence, p)]
