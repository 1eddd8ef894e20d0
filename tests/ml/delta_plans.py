"""A gated delta net without a model: a plan with the cache's storage, and sequences cut anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from chaski.kvcache import Checkpoints, RecurrentCache, gated_delta
from chaski.kvcache.batch import Batch
from chaski.ml import Backend, ops
from chaski.ml.graph import Dim, DType, Graph

__all__ = ["DeltaNet", "Shape", "Tokens", "assert_one_answer"]

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    key_heads: int = 2
    value_heads: int = 4
    key_size: int = 16
    value_size: int = 20
    taps: int = 4
    tiled: bool = False

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size


@dataclass(frozen=True, slots=True)
class Tokens:
    """The inputs of a layer's convolution for some tokens: rows, and logits of decay and rate."""

    NAMES: ClassVar = ("x", "log_decay", "beta")

    x: F32
    log_decay: F32
    beta: F32

    @classmethod
    def random(cls, shape: Shape, count: int, seed: int = 0) -> Tokens:
        """Return random tokens, with gates from forgetting almost nothing to forgetting all."""
        random = np.random.default_rng(seed)
        x = random.standard_normal((count, shape.channels)).astype(np.float32)
        strength = 10 ** random.uniform(-4, 1, (count, shape.value_heads))
        beta = random.uniform(0, 1, (count, shape.value_heads)).astype(np.float32)
        return cls(x, -strength.astype(np.float32), beta)

    def __getitem__(self, part: slice) -> Tokens:
        return Tokens(self.x[part], self.log_decay[part], self.beta[part])


class DeltaNet:
    """The convolution and recurrence of a model, with a cache for `sequences` sequences."""

    def __init__(
        self,
        backend: Backend,
        shape: Shape,
        sequences: int = 3,
        max_tokens: int = 256,
    ) -> None:
        kind = gated_delta(
            key_heads=shape.key_heads,
            value_heads=shape.value_heads,
            key_size=shape.key_size,
            value_size=shape.value_size,
            taps=shape.taps,
            checkpoints=Checkpoints(count=2, first=1, interval=64),
        )
        self.cache = RecurrentCache(backend, [kind], sequences)
        graph = Graph()
        tokens = Dim("tokens", max_tokens)
        x = graph.input("x", (tokens, shape.channels), DType.F32)
        log_decay = graph.input("log_decay", (tokens, shape.value_heads), DType.F32)
        beta = graph.input("beta", (tokens, shape.value_heads), DType.F32)
        (layer,) = self.cache.record(graph, tokens)
        filter = np.random.default_rng(7).standard_normal((shape.channels, shape.taps)).astype(np.float32)
        x = ops.chunked_conv(x, filter, layer.states[0], layer.rows[0], layer.segments)
        keys = shape.key_heads * shape.key_size
        q, k = (ops.slice(x, i * keys, keys).reshape(shape.key_heads, shape.key_size) for i in range(2))
        v = ops.slice(x, 2 * keys, shape.channels - 2 * keys).reshape(shape.value_heads, shape.value_size)
        q, k = ops.l2_norm(q, 1e-6) * shape.key_size**-0.5, ops.l2_norm(k, 1e-6)
        y = ops.gated_delta(
            q, k, v, log_decay, beta, layer.states[1], layer.rows[1:], layer.segments, tiled=shape.tiled
        )
        for name, tensor in {"q": q, "k": k, "v": v, "y": y}.items():
            graph.output(name, tensor)
        self._plan = backend.compile(graph)
        backend.load(lambda _: None)
        self._shape = shape

    def forward(self, *parts: tuple[int, Tokens], result: str = "y") -> list[F32]:
        """Compute more tokens of some sequences in one batch; return a result for each token."""
        counts = [len(tokens.x) for _, tokens in parts]
        starts = [self.cache.length(sequence) for sequence, _ in parts]
        positions = [np.arange(count) + start for start, count in zip(starts, counts, strict=True)]
        every = np.concatenate(positions).astype(np.int32)
        sequences = np.repeat([sequence for sequence, _ in parts], counts).astype(np.int32)
        segments = self.cache.start_forward(Batch(every, every, sequences, every[:0]))["segments"]
        tokens = [tokens for _, tokens in parts]
        joined = Tokens(*(np.concatenate([getattr(one, name) for one in tokens]) for name in Tokens.NAMES))
        found = self.launch(joined, segments, result).reshape(len(every), -1)
        return np.split(found, np.cumsum(counts)[:-1])

    def launch(self, tokens: Tokens, segments: npt.NDArray[np.int32], result: str = "y") -> F32:
        inputs = {name: getattr(tokens, name) for name in Tokens.NAMES}
        return self._plan.launch({**inputs, "segments": segments}).rows(result).copy()

    def whole(self, tokens: Tokens, sequence: int = 0, result: str = "y") -> F32:
        (found,) = self.forward((sequence, tokens), result=result)
        return found


def assert_one_answer(
    delta: DeltaNet, texts: Sequence[Tokens], expected: Sequence[F32], rounds: int = 60
) -> None:
    """Let three sequences grow, alone or together, lose tails, and take over prefixes.

    Each computes one of two texts; `expected` contains the complete answers.
    """
    random = np.random.default_rng(5)
    source = [0, 1, 0]  # the text of each sequence
    for _ in range(rounds):
        growing = []
        for sequence in random.permutation(3)[: random.integers(1, 4)].tolist():
            length = delta.cache.length(sequence)
            match random.integers(8):
                case 0:
                    begin = int(random.integers(length + 1))
                    kept = delta.cache.resumable(sequence, begin)
                    delta.cache.remove(sequence, begin)
                    assert delta.cache.length(sequence) == kept
                case 1:
                    delta.cache.remove(sequence, max(length - int(random.integers(8)), 0))
                case 2:
                    other = int(random.integers(3))
                    length = int(random.integers(delta.cache.length(other) + 1))
                    delta.cache.copy_prefix(other, sequence, length)
                    source[sequence] = source[other]
                case _:
                    count = int(random.choice([1, 1, 2, 5, 31, 33, 90]))
                    growing.append((sequence, length, min(length + count, 230)))
        parts = [(s, texts[source[s]][begin:end]) for s, begin, end in growing if end > begin]
        if not parts or sum(len(part.x) for _, part in parts) > 256:
            continue
        at = {sequence: delta.cache.length(sequence) for sequence, _ in parts}
        for (sequence, part), found in zip(parts, delta.forward(*parts), strict=True):
            begin = at[sequence]
            assert (found == expected[source[sequence]][begin : begin + len(part.x)]).all()
