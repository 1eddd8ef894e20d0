"""Measure the bookkeeping of the causal cache, per decode step: `python -m benchmarks.cache`.

It uses no model and only minimal storage: it measures the arrays that name the cells that a batch writes and
sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from chaski.kvcache import AttentionSpan, CausalCache, KVShape, KVTypes
from chaski.kvcache.batch import Batch
from chaski.ml.graph import DType
from chaski.ml.reference import ReferenceBackend

STEPS = 100
# Larger than the processor's caches.
_OTHER_MEMORY = np.zeros(64 << 20, np.uint8)
EVERYTHING = AttentionSpan()


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences that each have `history` tokens before they decode."""

    name: str
    sequences: int
    history: int
    span: AttentionSpan = EVERYTHING
    churn: bool = False


CASES = (
    Case("one sequence", 1, 4096),
    Case("8 sequences", 8, 4096),
    Case("32 sequences", 32, 1024),
    Case("32 sequences, after churn", 32, 1024, churn=True),
    Case("32 sequences, window 512", 32, 1024, AttentionSpan(window=512)),
    Case("32 sequences, window 128 of 1024", 32, 4096, AttentionSpan(window=128, memory=1024)),
)


def main() -> None:
    print(f"{'µs a step':36}{'cells':>8}{'warm':>10}{'cold':>10}")
    for case in CASES:
        cache = filled(case)
        warm, cold = (np.median(timed(cache, case, is_cold)) * 1e6 for is_cold in (False, True))
        print(f"{case.name:36}{cache.num_cells:8}{warm:10.1f}{cold:10.1f}")


def filled(case: Case) -> CausalCache:
    cache = CausalCache(
        ReferenceBackend(),
        [KVShape(1, 1, 1)],
        case.sequences,
        case.history + 2 * STEPS,
        KVTypes(DType.F32, DType.F32),
        max_batch=512,
        span=case.span,
    )
    if case.churn:
        churn(cache, case)
    for sequence in range(case.sequences):
        extend(cache, sequence, case.history)
    return cache


def timed(cache: CausalCache, case: Case, is_cold: bool) -> list[float]:
    """The seconds of each decode step; `cold`: with empty processor caches, as in a model."""
    times = []
    for batch in decode_steps(cache, case.sequences):
        if is_cold:
            _OTHER_MEMORY[::64] += 1
        started = perf_counter()
        cache.start_forward(batch)
        times.append(perf_counter() - started)
    return times


def decode_steps(cache: CausalCache, sequences: int) -> Iterator[Batch]:
    ids = np.arange(sequences, dtype=np.int32)
    for _ in range(STEPS):
        yield Batch(ids, np.full_like(ids, cache.length(0)), ids, ids)


def extend(cache: CausalCache, sequence: int, length: int) -> None:
    for begin in range(cache.length(sequence), length, 512):
        positions = np.arange(begin, min(begin + 512, length), dtype=np.int32)
        cache.start_forward(Batch(positions, positions, np.full_like(positions, sequence), positions[:0]))


def churn(cache: CausalCache, case: Case) -> None:
    """Grow, fork and end thousands of sequences, so that free cells are scattered."""
    random = np.random.default_rng(1)
    for _ in range(2000):
        source, target = (int(sequence) for sequence in random.integers(case.sequences, size=2))
        cache.remove(source, int(random.integers(cache.length(source) + 1)))
        extend(cache, source, int(random.integers(cache.length(source), case.history + 1)))
        cache.copy_prefix(source, target, int(random.integers(cache.length(source) + 1)))


if __name__ == "__main__":
    main()
