"""Plans of the cpu backend: their errors and barriers, and buffers that never collide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from chaski import _native
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.backend import Backend
from chaski.ml.cpu.lowering import Buffer, Call
from chaski.ml.cpu.plan import _phases, _place
from chaski.ml.graph import Dim, DType, Graph, Weight
from chaski.ml.plan import Plan

from .both_backends import bound, uniform


def call(reads: tuple[object, ...], writes: tuple[object, ...]) -> Call:
    return Call("step", {}, frozenset(reads), frozenset(writes))


def test_threads_wait_only_where_a_call_touches_what_another_wrote() -> None:
    a, b, c, d = (Buffer(64, 16) for _ in range(4))
    calls = [call((), (a,)), call((), (b,)), call((a, b), (c,)), call((b,), (d,)), call((c, d), (a,))]
    assert _phases(calls) == [0, 0, 1, 1, 2]


def test_overwriting_what_is_still_read_waits_too() -> None:
    a, b = Buffer(64, 16), Buffer(64, 16)
    assert _phases([call((a,), (b,)), call((), (a,))]) == [0, 1]


def test_buffers_that_live_together_never_overlap() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        buffers = [Buffer(int(size), 1) for size in rng.integers(1, 5000, 30)]
        calls = []
        for index in range(1, 30):
            read = buffers[int(rng.integers(max(0, index - 4), index))]
            calls.append(call((read,), (buffers[index],)))
        phases = _phases(calls)
        offsets, size = _place(calls, phases, buffers[:1])
        alive = {
            b: [p for c, p in zip(calls, phases, strict=True) if b in c.reads | c.writes] for b in buffers
        }
        alive[buffers[0]] = [0, phases[-1]]
        for one in offsets:
            assert offsets[one] % 64 == 0
            assert offsets[one] + one.size <= size
            for other in offsets:
                together = min(alive[one]) <= max(alive[other]) and min(alive[other]) <= max(alive[one])
                apart = (
                    offsets[one] + one.size <= offsets[other] or offsets[other] + other.size <= offsets[one]
                )
                assert one is other or apart or not together


def two_products(
    directory: Path, kinds: dict[str, QuantType]
) -> tuple[Backend, Graph, dict[str, NDArray[np.float32]], dict[str, _native.PackedMatrix]]:
    """Compile rows of a table times "matrix" and "other", both (32, 256), together and separately."""
    arrays = {name: uniform(32, 256) for name in kinds}
    backend = open_backend("cpu", CPUOptions(threads=1))
    path = directory / "weights.gguf"
    write_gguf(path, {"general.architecture": "test"}, {name: (x, kinds[name]) for name, x in arrays.items()})
    weights = {name: Weight(x.shape, plain=False, name=name) for name, x in arrays.items()}
    products = [name for name in kinds if name != "table"]
    with open_gguf(path) as file:
        backend.place([(weights[name], file.tensors[name]) for name in arrays])
        backend.load(lambda _: None)
        packed = {
            name: _native.pack_matrix(
                int(kinds[name]), np.frombuffer(bytes(file.tensors[name].data), np.uint8), 32, 256
            )
            for name in products
        }
    graph = Graph()
    x = ops.embedding(graph.input("ids", (Dim("tokens", 32),), DType.I32), weights["table"])
    for name in products:
        graph.output(name, ops.linear(x, weights[name]))
    return backend, graph, arrays, packed


@pytest.mark.parametrize(("other", "in_super_blocks"), [(QuantType.Q4_K, True), (QuantType.Q4_0, False)])
def test_activations_are_in_super_blocks_if_a_matrix_wants_them(
    tmp_path: Path, other: QuantType, in_super_blocks: bool
) -> None:
    kinds = {"table": QuantType.F32, "matrix": QuantType.Q8_0, "other": other}
    backend, graph, arrays, packed = two_products(tmp_path, kinds)
    plan = backend.compile(graph)
    launch = plan.launch({"ids": np.arange(32)})
    for name, matrix in packed.items():
        expected = _native.matmul(matrix, arrays["table"], in_super_blocks=in_super_blocks)
        assert (launch.rows(name) == expected).all()
    forms = [
        _native.matmul(packed["matrix"], arrays["table"], in_super_blocks=form) for form in (True, False)
    ]
    assert (forms[0] != forms[1]).any()


def test_a_matrix_that_wants_super_blocks_is_refused_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, graph, _, _ = two_products(tmp_path, {"table": QuantType.F32, "matrix": QuantType.Q4_K})
    monkeypatch.setattr("chaski.ml.rounding._needs_super_blocks", lambda type: False)
    with pytest.raises(ValueError, match="wants activations in super-blocks"):
        backend.compile(graph)


def small_plan(directory: Path) -> Plan:
    backend = open_backend("cpu", CPUOptions(threads=1))
    weights = bound(backend, directory, {"table": uniform(11, 8)})
    graph = Graph()
    ids = graph.input("ids", (Dim("tokens", 4),), DType.I32)
    graph.output("y", ops.embedding(ids, weights["table"]))
    return backend.compile(graph)


@pytest.mark.parametrize("bad", [-1, 11, 2**31 - 1])
def test_an_index_outside_the_table_is_refused(tmp_path: Path, bad: int) -> None:
    plan = small_plan(tmp_path)
    with pytest.raises(ValueError, match=rf"ids\[1\] = {bad} is not between 0 and 10"):
        plan.launch({"ids": np.array([0, bad])})


def test_a_batch_above_the_maximum_is_refused(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    with pytest.raises(ValueError, match="5 rows; it needs tokens = 5, at most 4"):
        plan.launch({"ids": np.zeros(5, np.int32)})


def test_an_empty_batch_runs(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    assert plan.launch({"ids": np.zeros(0, np.int32)}).rows("y").shape == (0, 8)
