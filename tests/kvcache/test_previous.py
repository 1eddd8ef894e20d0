"""The stored rows of previous tokens: each token reads a row of its own sequence, wherever it continues."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from chaski.kvcache import Cache, CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.kvcache.previous import StoredRows
from chaski.ml import open_backend
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph
from chaski.ml.plan import Plan
from tests.backends import BACKENDS

SIZE = 2 * 80


def compiled(backend: Backend, cache: Cache, rows: StoredRows) -> Plan:
    graph, tokens = Graph(), Dim("tokens", 16)
    given = graph.input("rows", (tokens, SIZE), DType.F32)
    graph.output("before", rows.previous(given, cache.record(graph, tokens)[0]))
    return backend.compile(graph)


@pytest.mark.parametrize(
    ("size", "heads", "key_size", "part"),
    [
        (160, 1, 32, 160),
        (320, 2, 32, 160),
        (480, 3, 32, 160),
        (512, 2, 32, 256),
        (2048, 8, 32, 256),
        (100, 1, 4, 100),
        (514, 257, 2, 2),
        (257, 257, 1, 1),
        (255, 1, 1, 255),
        (1, 1, 1, 1),
    ],
)
def test_rows_are_cut_into_the_largest_heads_of_whole_blocks(
    size: int, heads: int, key_size: int, part: int
) -> None:
    shape = StoredRows(size).kind.shape
    assert (shape.heads, shape.key_size, shape.value_size) == (heads, key_size, part)


@pytest.mark.parametrize("name", BACKENDS)
def test_each_token_reads_the_row_before(name: str) -> None:
    """The bits are the same across batches, after a shared prefix, and after dropped tokens."""
    rows = StoredRows(SIZE)
    random = np.random.default_rng(1)
    with closing(open_backend(name)) as backend:
        size = CacheSize(2, 32, 16)
        cache = build_cache(backend, [rows.kind], size, KVTypes(DType.F32, DType.F32))
        plan = compiled(backend, cache, rows)
        backend.load(lambda share: None)
        held: dict[int, list[np.ndarray]] = {0: [], 1: []}

        def step(*sequences: int) -> None:
            given = random.standard_normal((len(sequences), SIZE)).astype(np.float32)
            positions, expected = [], []
            for sequence, row in zip(sequences, given, strict=True):
                positions.append(len(held[sequence]))
                expected.append(held[sequence][-1] if held[sequence] else row)
                held[sequence].append(row)
            ids = np.array(sequences, np.int32)
            batch = Batch(np.zeros_like(ids), np.array(positions, np.int32), ids, np.zeros(0, np.int32))
            launch = plan.launch({**cache.start_forward(batch), "rows": given})
            launch.wait()
            np.testing.assert_array_equal(launch.rows("before"), np.array(expected))

        step(0, 0, 0, 1)
        step(0, 1, 1)
        step(1)
        cache.remove(0, 3)
        del held[0][3:]
        step(0, 0, 1)
        cache.copy_prefix(0, 1, 4)
        held[1] = held[0][:4]
        step(1, 1, 0)
        cache.remove(1, 3, 5)  # a middle: later tokens move down
        del held[1][3:5]
        step(1)
