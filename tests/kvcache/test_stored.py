"""Reading stored keys and values for a token without its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from chaski.kvcache import AttentionSpan, Cache, CacheSize, Causal, KVShape, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.kvcache.part import CachePart, StoredPart
from chaski.ml import open_backend, ops
from chaski.ml.backend import Backend, BackendOptions, CacheConfig, CPUOptions, MaskForm
from chaski.ml.cpu import CPUBackend
from chaski.ml.graph import Dim, DType, Graph
from chaski.ml.reference import ReferenceBackend
from tests.backends import CHOSEN

HEADS, SIZE, WINDOW, SEQUENCES = 3, 20, 5, 2
LAYERS = [Causal(KVShape(1, SIZE, SIZE), AttentionSpan(window)) for window in (WINDOW, None, WINDOW, None)]
READ = [2, 1]
F32 = npt.NDArray[np.float32]


BACKENDS: dict[str, Callable[[], Backend]] = {
    "spans": ReferenceBackend,
    "dense": lambda: ReferenceBackend(CacheConfig(mask=MaskForm.F32)),
    "pages": lambda: ReferenceBackend(CacheConfig(page=4, mask=MaskForm.PAGED)),
    "cpu": lambda: CPUBackend(BackendOptions(), CPUOptions(2)),
    "cpu, plain": lambda: CPUBackend(BackendOptions(flash_attention=False), CPUOptions(2)),
    **({CHOSEN: lambda: open_backend(CHOSEN)} if CHOSEN else {}),
}


class Stored:
    """Random keys and values of every layer by sequence and position, and a plan that stores them."""

    def __init__(self, backend: Backend) -> None:
        self.cache: Cache = build_cache(
            backend, LAYERS, CacheSize(SEQUENCES, 60, 16), KVTypes(DType.F32, DType.F32)
        )
        graph, tokens = Graph(), Dim("tokens", 16)
        for index, layer in enumerate(self.cache.record(graph, tokens)):
            rows = [graph.input(f"{what}{index}", (tokens, SIZE), DType.F32) for what in "kv"]
            keys, values, mask = layer.update(*(row.reshape(1, SIZE) for row in rows))
            graph.output(f"y{index}", ops.attention(rows[0].reshape(1, SIZE), keys, values, mask, scale=1.0))
        self._plan = backend.compile(graph)
        self._random = np.random.default_rng(1)
        self.rows: list[list[Any]] = [[] for _ in range(SEQUENCES)]

    def store(self, counts: dict[int, int]) -> None:
        """Store more tokens of sequences."""
        batch = following(self.cache, counts)
        values = dict(self.cache.start_forward(batch))
        rows = self._random.standard_normal((len(batch.tokens), len(LAYERS), 2, SIZE)).astype(np.float32)
        for index in range(len(LAYERS)):
            values |= {f"{what}{index}": rows[:, index, part] for part, what in enumerate("kv")}
        self._plan.launch(values).wait()
        for sequence, row in zip(batch.sequences.tolist(), rows, strict=True):
            self.rows[sequence].append(row)

    def attended(self, sequence: int, layer: int, q: F32) -> F32:
        """Return attention of the next token of a sequence over the tokens before it."""
        seen = np.array(self.rows[sequence])[:, layer]
        seen = seen if LAYERS[layer].span.window is None else seen[1 - WINDOW :]
        powers = np.exp(q @ seen[:, 0].T)
        found: F32 = powers @ seen[:, 1] / powers.sum(axis=-1, keepdims=True)
        return found


def following(cache: Cache, counts: dict[int, int]) -> Batch:
    positions = [np.arange(n) + cache.length(s) for s, n in counts.items()]
    sequences = np.repeat(list(counts), list(counts.values())).astype(np.int32)
    return Batch(sequences, np.concatenate(positions).astype(np.int32), sequences, sequences[:0])


@pytest.mark.parametrize("name", BACKENDS)
def test_a_token_sees_what_the_next_one_of_its_sequence_will_see(name: str) -> None:
    with closing(BACKENDS[name]()) as backend:
        _check(backend)


def _check(backend: Backend) -> None:
    stored = Stored(backend)
    part, graph, tokens = StoredPart(stored.cache, READ), Graph(), Dim("tokens", SEQUENCES)
    for number, layer in zip(READ, part.record(graph, tokens), strict=True):
        q = graph.input(f"q{number}", (tokens, HEADS * SIZE), DType.F32).reshape(HEADS, SIZE)
        keys, values, mask = layer.read()
        graph.output(f"y{number}", ops.attention(q, keys, values, mask, 1.0).reshape(HEADS * SIZE))
    plan = backend.compile(graph)
    for counts in ({0: 3, 1: 1}, {0: 1}, {1: 7}, {0: 16}, {1: 2, 0: 1}):
        stored.store(counts)
        chosen = [1, 0] if len(counts) > 1 else list(counts)
        batch = following(stored.cache, dict.fromkeys(chosen, 1))
        queries = np.random.default_rng(2).standard_normal((len(chosen), HEADS, SIZE)).astype(np.float32)
        values = {f"q{number}": queries.reshape(len(chosen), -1) for number in READ}
        for _ in range(2):  # the first stores nothing
            launch = plan.launch({**values, **part.start_forward(batch)})
            for number in READ:
                found = launch.rows(f"y{number}").reshape(len(chosen), HEADS, SIZE)
                wanted = [stored.attended(s, number, q) for s, q in zip(chosen, queries, strict=True)]
                np.testing.assert_allclose(found, wanted, atol=1e-5)
            part.undo_forward(batch)
        assert part.positions(batch).tolist() == [len(stored.rows[sequence]) for sequence in chosen]


def test_positions_of_a_part_that_stores_are_those_of_the_batch() -> None:
    stored = Stored(ReferenceBackend())
    batch = following(stored.cache, {1: 2})
    assert CachePart(stored.cache, READ).positions(batch) is batch.positions
