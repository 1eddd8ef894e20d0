"""What the bookkeeping of the causal cache costs per decode step: `python -m benchmarks.cache`.

No model and no storage of size: only the arrays that say which cells a batch writes and sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from chaski.kvcache import CausalCache, KVShape, KVTypes, Reach
from chaski.ml.graph import DType
from chaski.ml.reference import ReferenceBackend
from chaski.model.input import Batch

STEPS = 200
EVERYTHING = Reach()


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences that all hold `history` tokens before they decode."""

    name: str
    sequences: int
    history: int
    reach: Reach = EVERYTHING
    churn: bool = False


CASES = (
    Case("one sequence", 1, 4096),
    Case("8 sequences", 8, 4096),
    Case("32 sequences", 32, 1024),
    Case("32 sequences, after churn", 32, 1024, churn=True),
    Case("32 sequences, window 512", 32, 1024, Reach(window=512)),
    Case("32 sequences, window 128 of 1024", 32, 4096, Reach(window=128, memory=1024)),
)


def main() -> None:
    print(f"{'µs a step':36}{'cells':>8}{'median':>10}{'mean':>10}")
    for case in CASES:
        num_cells, times = measure(case)
        print(f"{case.name:36}{num_cells:8}{np.median(times) * 1e6:10.1f}{np.mean(times) * 1e6:10.1f}")


def measure(case: Case) -> tuple[int, list[float]]:
    """The cells of the cache, and the seconds of each decode step."""
    cache = CausalCache(
        ReferenceBackend(),
        [KVShape(1, 1, 1)],
        case.sequences,
        case.history + STEPS,
        KVTypes(DType.F32, DType.F32),
        max_batch=512,
        reach=case.reach,
    )
    if case.churn:
        churn(cache, case)
    for sequence in range(case.sequences):
        extend(cache, sequence, case.history)
    times = []
    for batch in decode_steps(case):
        started = perf_counter()
        cache.start_forward(batch)
        times.append(perf_counter() - started)
    return cache.num_cells, times


def decode_steps(case: Case) -> Iterator[Batch]:
    sequences = np.arange(case.sequences, dtype=np.int32)
    for step in range(STEPS):
        positions = np.full_like(sequences, case.history + step)
        yield Batch(sequences, positions, sequences, sequences)


def extend(cache: CausalCache, sequence: int, length: int) -> None:
    for begin in range(cache.length(sequence), length, 512):
        positions = np.arange(begin, min(begin + 512, length), dtype=np.int32)
        cache.start_forward(Batch(positions, positions, np.full_like(positions, sequence), positions[:0]))


def churn(cache: CausalCache, case: Case) -> None:
    """Thousands of sequences that grow, fork and end, so that free cells lie scattered."""
    random = np.random.default_rng(1)
    for _ in range(2000):
        source, target = (int(sequence) for sequence in random.integers(case.sequences, size=2))
        cache.remove(source, int(random.integers(cache.length(source) + 1)))
        extend(cache, source, int(random.integers(cache.length(source), case.history + 1)))
        cache.copy_prefix(source, target, int(random.integers(cache.length(source) + 1)))


if __name__ == "__main__":
    main()
