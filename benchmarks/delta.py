"""Measure a gated delta net layer in prefill and decode, without the matrices around it.

    python -m benchmarks.delta [--threads N] [--isa NAME]

The layer has 16 key heads and 32 value heads of 128 x 128, as in Qwen 3.5 and Qwen3-Next.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from chaski.kvcache import RecurrentCache, gated_delta
from chaski.kvcache.batch import Batch
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph

KEY_HEADS, HEADS, SIZE, MAX_TOKENS = 16, 32, 128, 512


class Layer:
    """The recurrence alone, over random rows."""

    def __init__(self, options: CPUOptions, sequences: int) -> None:
        backend = open_backend("cpu", options)
        kind = gated_delta(key_heads=KEY_HEADS, value_heads=HEADS, key_size=SIZE, value_size=SIZE, taps=4)
        self.cache = RecurrentCache(backend, [kind], sequences)
        graph, tokens = Graph(), Dim("tokens", MAX_TOKENS)
        widths = {
            "q": KEY_HEADS * SIZE,
            "k": KEY_HEADS * SIZE,
            "v": HEADS * SIZE,
            "log_decay": HEADS,
            "beta": HEADS,
        }
        x = {name: graph.input(name, (tokens, width), DType.F32) for name, width in widths.items()}
        (layer,) = self.cache.record(graph, tokens)
        q, k = (x[name].reshape(KEY_HEADS, SIZE) for name in "qk")
        y = ops.gated_delta(
            q,
            k,
            x["v"].reshape(HEADS, SIZE),
            x["log_decay"],
            x["beta"],
            layer.states[1],
            layer.rows[1:],
            layer.segments,
        )
        graph.output("y", y)
        self._plan = backend.compile(graph)
        backend.load(lambda _: None)
        random = np.random.default_rng(0)
        self._rows = {
            name: (random.standard_normal((MAX_TOKENS, width)) / SIZE).astype(np.float32)
            for name, width in widths.items()
        }
        self._rows["log_decay"] = -np.abs(self._rows["log_decay"])

    def forward(self, counts: Sequence[int]) -> float:
        """Compute `counts` more tokens of each sequence; return the seconds of the plan alone."""
        starts = [self.cache.length(sequence) for sequence in range(len(counts))]
        pairs = zip(starts, counts, strict=True)
        positions = np.concatenate([np.arange(start, start + count) for start, count in pairs]).astype(
            np.int32
        )
        sequences = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
        rows = {name: each[: sum(counts)] for name, each in self._rows.items()}
        segments = self.cache.start_forward(Batch(positions, positions, sequences, positions[:0]))
        begin = time.perf_counter()
        self._plan.launch({**rows, **segments}).wait()
        return time.perf_counter() - begin


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa", default="auto")
    options = parser.parse_args(arguments)
    for name, counts in [
        ("prefill of 512", [MAX_TOKENS]),
        ("prefill of 64", [64]),
        ("decode", [1]),
        ("decode of 8 sequences", [1] * 8),
        ("5 tokens at once", [5]),
    ]:
        layer = Layer(CPUOptions(threads=options.threads, isa=options.isa), len(counts))
        layer.forward(counts)
        seconds = [layer.forward(counts) for _ in range(max(5, 128 // max(counts)))]
        middle, mean = np.median(seconds), np.mean(seconds)
        print(
            f"{name:24} {1e6 * middle:9.1f} µs (mean {1e6 * mean:.1f})  {sum(counts) / mean:10.0f} tokens/s"
        )


if __name__ == "__main__":
    main()
