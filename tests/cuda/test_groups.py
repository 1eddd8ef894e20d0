"""Groups of tokens, streams and routers of DeepSeek V4 on a GPU have the bits of the cpu backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chaski.ml import ops
from chaski.ml.graph import DType, Tensor
from chaski.ml.moe_ops import Gating, RouteTable, router
from tests.cuda.devices import BACKENDS
from tests.cuda.test_same_bits import Weights, assert_same, write
from tests.ml.both_backends import uniform
from tests.ml.test_entry_attention import Attending
from tests.ml.test_pooling import COUNT, GROUPS, Pooling

on_each = pytest.mark.parametrize("backend", BACKENDS)


@on_each
@pytest.mark.parametrize(("ratio", "inputs"), GROUPS)
def test_pools(backend: str, ratio: int, inputs: int) -> None:
    wanted = Pooling(("cpu", "auto"), ratio, inputs).cut([COUNT])
    for counts in ([COUNT], [1, 40, 1, 24, 33, 51]):
        found = Pooling((backend, "auto"), ratio, inputs).cut(counts)
        np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@on_each
@pytest.mark.long
@pytest.mark.parametrize(("count", "type"), [(0, DType.I16), (50, DType.F16)])
def test_attention_to_entries(backend: str, count: int, type: DType) -> None:
    positions = [0, 2, 3, 4, 299, 301, 1025, 1299]
    places = ("cpu", "auto"), (backend, "auto")
    wanted, found = (Attending(place, count, threads=1, type=type).at(positions) for place in places)
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@on_each
@pytest.mark.parametrize(("size", "iterations"), [(4, 20), (1, 1), (20, 3)])
def test_streams(tmp_path: Path, backend: str, size: int, iterations: int) -> None:
    path = write(tmp_path / "a.gguf", table=uniform(11, size * 37), mixtures=uniform(11, size * size))

    def record(ids: Tensor, w: Weights) -> Tensor:
        mixtures = ops.embedding(ids, w["mixtures"]).reshape(size, size)
        x = ops.embedding(ids, w["table"]).reshape(size, 37)
        return ops.mix_streams(x, ops.sinkhorn(mixtures, iterations, 1e-6)).reshape(size * 37)

    assert_same(backend, path, record, [1, 0, 9, 3, 3, 10, 5])


@on_each
@pytest.mark.parametrize("has_table", [False, True])
def test_routers(tmp_path: Path, backend: str, has_table: bool) -> None:
    path = write(tmp_path / "a.gguf", table=uniform(11, 37))
    experts = np.argsort(uniform(11, 37), axis=1)[:, :5].astype(np.int32)

    def record(ids: Tensor, w: Weights) -> Tensor:
        known = RouteTable(ids, experts) if has_table else None
        logits = ops.embedding(ids, w["table"])
        found = router(logits, 5, Gating.SQRT_SOFTPLUS, normalized=True, scale=2.5, table=known)
        return found.reshape(10)

    assert_same(backend, path, record, [1, 0, 9, 3, 3, 10, 5])
