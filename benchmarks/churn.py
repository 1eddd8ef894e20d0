"""Measure the speed and size of a cache as it ages: `python -m benchmarks.churn MODEL.gguf`.

For thousands of random steps, sequences start, grow together, fork, and lose their tails and their middles.
Now and then the script brings the old cache and a fresh one to the same state, and both decode in turns. They
share weights and threads.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from chaski.errors import NotSupportedError
from chaski.formats.gguf import open_gguf
from chaski.kvcache import CacheSize, CausalCache, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.ml import Backend, CPUOptions, open_backend
from chaski.ml.graph import DType
from chaski.model.program import Program
from chaski.model.registry import Model, build_model
from chaski.model.weights import place_weights
from chaski.runner.generation.request import Shift

SIZE = CacheSize(sequences=8, capacity=1024, max_batch=256)
HISTORY = 512
ROUNDS, TOKENS = 12, 8


class Running:
    """A cache with its model."""

    def __init__(self, model: Model, backend: Backend) -> None:
        cache = build_cache(backend, model.layer_kinds(), SIZE, KVTypes(DType.F16, DType.F16))
        assert isinstance(cache, CausalCache), "a model with layers of one kind"
        self.cache = cache
        self._program = Program(model, cache, backend, SIZE.max_batch, SIZE.sequences)

    def forward(self, counts: dict[int, int]) -> npt.NDArray[np.int32]:
        """Append arbitrary tokens to some sequences; return the cells that the batch saw."""
        lengths = {sequence: self.cache.length(sequence) for sequence in counts}
        positions = np.concatenate([np.arange(lengths[s], lengths[s] + n) for s, n in counts.items()])
        sequences = np.repeat(list(counts), list(counts.values()))
        arrays = [array.astype(np.int32) for array in (positions % 500, positions, sequences)]
        outputs = np.cumsum(list(counts.values()), dtype=np.int32) - 1
        inputs = self._program.prepare(Batch(arrays[0], arrays[1], arrays[2], outputs))
        cells = inputs["history"].copy()
        self._program.launch(inputs)
        self._program.wait()
        return cells

    def fill(self, length: int) -> None:
        """Grow every sequence to a length in small steps, as in decoding."""
        for sequence in range(SIZE.sequences):
            self.cache.remove(sequence, length)
        while missing := {
            s: min(16, length - self.cache.length(s))
            for s in range(SIZE.sequences)
            if self.cache.length(s) < length
        }:
            self.forward(missing)

    def decode(self) -> float:
        """Return the seconds of a decode step of all sequences, from `HISTORY` on."""
        times = []
        for _ in range(TOKENS):
            started = perf_counter()
            self.forward(dict.fromkeys(range(SIZE.sequences), 1))
            times.append(perf_counter() - started)
        for sequence in range(SIZE.sequences):
            self.cache.remove(sequence, HISTORY)
        return float(np.median(times))

    def step(self, random: np.random.Generator) -> None:
        """Change a sequence at random, then let some sequences grow."""
        source, target = (int(sequence) for sequence in random.permutation(SIZE.sequences)[:2])
        length = self.cache.length(source)
        match random.integers(10):
            case 0:
                self.cache.remove(source, 0)
            case 1:
                self.cache.remove(source, int(random.integers(length + 1)))
            case 2:
                self.cache.copy_prefix(source, target, int(random.integers(length + 1)))
            case 3:
                self.shift(source)
        grown = random.permutation(SIZE.sequences)[: random.integers(1, 5)].tolist()
        self.forward({s: self.room(s, random) for s in grown})

    def room(self, sequence: int, random: np.random.Generator) -> int:
        """Return the number of tokens to add to a sequence; shift a full one first."""
        count = 1 if random.random() < 0.8 else int(random.integers(1, SIZE.max_batch // 4))
        if self.cache.length(sequence) + count > SIZE.capacity:
            self.shift(sequence)
        return count

    def shift(self, sequence: int) -> None:
        """Drop half of a sequence except its beginning, as the runner does.

        If later tokens are shared, drop them too.
        """
        dropped = Shift(self.cache.length(sequence), num_keep=4).dropped()
        try:
            self.cache.remove(sequence, dropped.start, dropped.stop)
        except NotSupportedError:
            self.cache.remove(sequence, 4)


def mean_run(cells: npt.NDArray[np.int32]) -> float:
    """Return the average length of runs of adjacent cells."""
    return len(cells) / (1 + np.count_nonzero(np.diff(cells) != 1))


def resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    file = open_gguf(options.model)
    model, backend = build_model(file), open_backend("cpu", CPUOptions(threads=options.threads))
    place_weights(model, file, backend)
    old, fresh = Running(model, backend), Running(model, backend)
    backend.load(lambda _: None)
    random = np.random.default_rng(1)
    print(f"{'steps':>8}{'resident MB':>14}{'cells in a run':>16}{'fresh ms':>10}{'old ms':>10}{'ratio':>8}")
    for steps in range(0, options.steps + 1, options.steps // 5):
        for _ in range(options.steps // 5 if steps else 0):
            old.step(random)
        resident = resident_megabytes()
        old.fill(HISTORY)
        fresh.fill(0)
        fresh.fill(HISTORY)
        run = mean_run(old.forward(dict.fromkeys(range(SIZE.sequences), 1)))
        old.fill(HISTORY)
        times = np.array([(fresh.decode(), old.decode()) for _ in range(ROUNDS)]) * 1e3
        ratio = np.median(times[:, 0] / times[:, 1])
        print(f"{steps:8}{resident:14.1f}{run:16.1f}{np.median(times[:, 0]):10.2f}", end="")
        print(f"{np.median(times[:, 1]):10.2f}{ratio:8.3f}", flush=True)


if __name__ == "__main__":
    main()
