"""Queries and keys that one kernel rotates, and stores with values, have the bits of the cpu backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, KVRole, Mask, Rope
from tests.cuda.devices import BACKENDS
from tests.ml.both_backends import bound

F32 = npt.NDArray[np.float32]
TOKENS = 12


def attended(
    directory: Path, backend: str, types: tuple[DType, DType], shape: tuple[int, ...], rope: Rope
) -> F32:
    """Return the attention of all tokens, each at its own position, in two batches."""
    heads, kv_heads, size, value_size = shape
    opened = open_backend(backend, CPUOptions(threads=1))
    random = np.random.default_rng(1)
    widths = {"q": heads * size, "k": kv_heads * size, "v": kv_heads * value_size}
    arrays = {
        name: random.standard_normal((TOKENS, width)).astype(np.float32) for name, width in widths.items()
    }
    weights = bound(opened, directory, arrays)
    keys = opened.kv_buffer(KVRole.KEYS, 64, kv_heads, size, types[0])
    values = opened.kv_buffer(KVRole.VALUES, 64, kv_heads, value_size, types[1])
    graph = Graph()
    ids = graph.input("ids", (Dim("tokens", TOKENS),), DType.I32)
    where = graph.input("where", ids.shape, DType.I32)
    history = graph.input("history", (Dim("history", TOKENS),), DType.I32)
    spans = graph.input("spans", (ids.shape[0], 3), DType.I32)
    table = ops.rope_table(ids, rope)
    q, k, v = (ops.embedding(ids, weights[name]) for name in "qkv")
    stored_keys = ops.store(ops.rope(k.reshape(kv_heads, size), table), where, keys)
    stored_values = ops.store(v.reshape(kv_heads, value_size), where, values)
    turned = ops.rope(q.reshape(heads, size), table)
    y = ops.attention(turned, stored_keys, stored_values, Mask(history, spans), size**-0.5)
    graph.output("y", y.reshape(heads * value_size))
    plan = opened.compile(graph)
    opened.load(lambda share: None)
    cells, found = random.permutation(64)[:TOKENS].astype(np.int32), []
    for first, last in ((0, 7), (7, TOKENS)):
        batch = np.arange(first, last, dtype=np.int32)
        sees = np.array([(0, last, 0)] * len(batch), np.int32)
        inputs = {"ids": batch, "where": cells[batch], "history": cells[:last], "spans": sees}
        found.append(plan.launch(inputs).rows("y").copy())
    opened.close()
    return np.concatenate(found)


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize(
    ("types", "shape", "pairs"),
    [
        ((DType.I16, DType.I16), (6, 3, 64, 32), 32),
        ((DType.I16, DType.F16), (3, 1, 40, 24), 13),
        ((DType.F32, DType.I16), (5, 5, 20, 20), 10),
        ((DType.Q8_0, DType.Q4_0), (2, 1, 96, 64), 20),
        ((DType.Q3_0, DType.Q4_0), (3, 3, 64, 32), 32),
    ],
    ids=str,
)
def test_turned_and_stored(
    tmp_path: Path, backend: str, types: tuple[DType, DType], shape: tuple[int, ...], pairs: int, neox: bool
) -> None:
    """It tests even and odd numbers of heads, partly rotated heads, and pairs that lanes share."""
    rope = Rope(np.float32(100.0) ** (-np.arange(pairs, dtype=np.float32) / pairs), neox, 1.25)
    expected, found = (attended(tmp_path, name, types, shape, rope) for name in ("cpu", backend))
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
