"""Products of one token that turn and store the heads of queries, keys and values."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.formats.gguf import open_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, KVRole, Mask, Rope, Weight
from tests.cuda.devices import launched_kernels
from tests.cuda.emulated import NAME
from tests.cuda.test_same_bits import write
from tests.cuda.test_tails import matrix
from tests.ml.both_backends import uniform
from tests.native.matmul_rule import activations
from tests.tiers import long_after

HIDDEN = 256
BATCHES = (0, 1, 4, 16, 33)  # the edges of batches, of 1, 3, 12 and 17 tokens
TOKENS, CELLS = BATCHES[-1], 64


def attended(
    backend: str, path: Path, types: tuple[DType, DType], shape: tuple[int, ...], rope: Rope
) -> tuple[list[Any], list[str]]:
    """Return the attention of batches, each after the previous ones, and the names of kernels."""
    heads, kv_heads, size, value_size = shape
    opened = open_backend(backend, CPUOptions(threads=1))
    with open_gguf(path) as file:
        w = {name: Weight(info.shape, name=name) for name, info in file.tensors.items()}
        opened.place([(w[name], info) for name, info in file.tensors.items()])
        keys = opened.kv_buffer(KVRole.KEYS, CELLS, kv_heads, size, types[0])
        values = opened.kv_buffer(KVRole.VALUES, CELLS, kv_heads, value_size, types[1])
        graph = Graph()
        ids = graph.input("ids", (Dim("tokens", TOKENS),), DType.I32)
        where = graph.input("where", ids.shape, DType.I32)
        history = graph.input("history", (Dim("history", TOKENS),), DType.I32)
        spans = graph.input("spans", (ids.shape[0], 3), DType.I32)
        table, x = ops.rope_table(ids, rope), ops.embedding(ids, w["table"])
        q = ops.rope(ops.linear(x, w["q"], w["bias"]).reshape(heads, size), table)
        k = ops.rope(ops.linear(x, w["k"]).reshape(kv_heads, size), table)
        v = ops.linear(x, w["v"]).reshape(kv_heads, value_size)
        stored = ops.store(k, where, keys), ops.store(v, where, values)
        y = ops.attention(q, *stored, Mask(history, spans), size**-0.5)
        graph.output("y", y.reshape(heads * value_size))
        plan = opened.compile(graph)
        opened.load(lambda share: None)
        cells = np.random.default_rng(1).permutation(CELLS)[:TOKENS].astype(np.int32)
        found = []
        for first, last in pairwise(BATCHES):
            batch = np.arange(first, last, dtype=np.int32)
            sees = np.array([(0, token + 1, 0) for token in batch], np.int32)
            inputs = {"ids": batch, "where": cells[batch], "history": cells[:last], "spans": sees}
            found.append(plan.launch(inputs).rows("y").copy())
        names = launched_kernels(plan)
        opened.close()
    return found, names


@pytest.mark.parametrize(
    ("weights", "types", "shape", "stores"),
    long_after(
        2,
        [
            (("Q4_K", "Q4_K", "Q6_K"), (DType.I16, DType.I16), (6, 2, 64, 64), 3),
            (("Q8_0", "Q8_0", "Q8_0"), (DType.I16, DType.F16), (3, 1, 32, 48), 3),
            (("Q4_K", "Q6_K", "Q8_0"), (DType.Q8_0, DType.F32), (5, 5, 32, 16), 3),
            (("Q4_0", "Q4_0", "Q4_K"), (DType.BF16, DType.I16), (4, 2, 80, 80), 3),
            (("Q4_K", "Q4_K", "F16"), (DType.I16, DType.I16), (2, 2, 128, 128), 4),
            (("Q4_K", "Q4_K", "Q4_K"), (DType.Q4_0, DType.Q4_0), (2, 1, 64, 64), 4),
            (("Q4_K", "Q4_K", "Q4_K"), (DType.I16, DType.I16), (3, 3, 24, 32), 4),
        ],
    ),
)
def test_products_turn_and_store_heads(
    tmp_path: Path, weights: tuple[str, ...], types: tuple[DType, DType], shape: tuple[int, ...], stores: int
) -> None:
    """`stores` is the number of batches that need another kernel.

    These have several tokens, a product of floats, rotated keys (Q4_0), or heads that are not whole panels.
    """
    heads, kv_heads, size, value_size = shape
    widths = heads * size, kv_heads * size, kv_heads * value_size
    matrices = {
        name: matrix(QuantType[type], rows, HIDDEN)
        for name, type, rows in zip("qkv", weights, widths, strict=True)
    }
    path = write(
        tmp_path / "a.gguf", table=activations(TOKENS, HIDDEN), bias=uniform(heads * size), **matrices
    )
    pairs = size // 2 if size != 80 else 20
    rope = Rope(np.float32(100.0) ** (-np.arange(pairs, dtype=np.float32) / pairs), size != 32, 1.25)
    expected, _ = attended("cpu", path, types, shape, rope)
    found, names = attended(NAME, path, types, shape, rope)
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(other).all()
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))
    assert names.count("store") == stores
