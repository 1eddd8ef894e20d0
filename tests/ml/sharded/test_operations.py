"""Operations of small graphs over several members give the bits of the cpu backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski.errors import UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_tensors import TensorInfo
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import NodesOptions, open_backend, ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, KVRole, Mask, Tensor, Weight
from chaski.ml.moe_ops import Gating, combine, dispatch, expert_linear, group_by_expert, router
from tests.ml.sharded.members import Nodes
from tests.native.matmul_rule import random_weights
from tests.rewriting import bytes_as

Weights = dict[str, Weight]
Record = Callable[[Tensor, Weights], Tensor]
F32 = npt.NDArray[np.float32]

SPLITS = [("layers", 2), ("rows", 2), ("rows", 3)]

on_each = pytest.mark.parametrize(("split", "count"), SPLITS)


def opened(nodes: Nodes, split: str, count: int, shares: tuple[float, ...] | None = None) -> Backend:
    addresses = tuple(("127.0.0.1", server.port) for server in nodes.servers[:count])
    return open_backend("sharded", NodesOptions(addresses, split, shares, str(nodes.key_file)))


def weights_of(backend: Backend, path: Path, cut: dict[str, int], plain: tuple[str, ...] = ()) -> Weights:
    """Return the weights of a file, cut along these axes."""
    with open_gguf(path) as file:
        weights = {
            name: Weight(info.shape, plain=name in plain, name=name, split=cut.get(name))
            for name, info in file.tensors.items()
        }
        backend.place([(weights[name], info) for name, info in file.tensors.items()])
    return weights


def run(
    backend: Backend, path: Path, record: Record, cut: dict[str, int], plain: tuple[str, ...] = ()
) -> F32:
    weights = weights_of(backend, path, cut, plain)
    graph = Graph()
    graph.output("y", record(graph.input("ids", (Dim("tokens", 9),), DType.I32), weights))
    plan = backend.compile(graph)
    backend.load(lambda share: None)
    backend.wait_loaded()
    found = plan.launch({"ids": np.array([3, 0, 31, 7, 7], np.int32)}).rows("y").copy()
    backend.close()
    return found.reshape(len(found), -1)


def assert_same(
    nodes: Nodes,
    split: str,
    count: int,
    path: Path,
    record: Record,
    cut: dict[str, int],
    plain: tuple[str, ...] = (),
) -> None:
    expected = run(open_backend("cpu"), path, record, cut, plain)
    found = run(opened(nodes, split, count), path, record, cut, plain)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def uniform(*shape: int) -> tuple[F32, QuantType]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32), QuantType.F32


def write(path: Path, **tensors: object) -> Path:
    named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    write_gguf(path, {"general.architecture": "test"}, named)
    return path


@on_each
def test_one_matrix_decides_how_all_activations_are_rounded(
    tmp_path: Path, nodes: Nodes, split: str, count: int
) -> None:
    """With integer scales they are in super-blocks, also on nodes without that matrix."""
    q8, q4 = QuantType.Q8_0, QuantType.Q4_K
    path = write(
        tmp_path / "a.gguf",
        token_embd=uniform(32, 512),
        blk__0__a=bytes_as(random_weights(q8, 512, 512), q8, (512, 512)),
        blk__1__b=bytes_as(random_weights(q4, 64, 512), q4, (64, 512)),
    )

    def record(ids: Tensor, w: Weights) -> Tensor:
        x = ops.embedding(ids, w["token_embd"])
        return ops.linear(ops.linear(x, w["blk.0.a"]), w["blk.1.b"])

    assert_same(nodes, split, count, path, record, {"token_embd": 0, "blk.0.a": 0, "blk.1.b": 0})


@on_each
def test_rows_and_columns(tmp_path: Path, nodes: Nodes, split: str, count: int) -> None:
    """It tests uneven parts, slices, concatenations, and whole reads by operations without cuts."""
    path = write(
        tmp_path / "a.gguf",
        token_embd=uniform(32, 36),
        blk__0__a=uniform(40, 36),
        blk__0__bias=uniform(40),
        blk__0__vector=uniform(20),
        blk__1__b=uniform(20, 36),
        blk__1__product=uniform(36, 21),
        blk__1__one=uniform(1, 36),
        blk__1__gates=uniform(4, 36),
    )

    def record(ids: Tensor, w: Weights) -> Tensor:
        x = ops.embedding(ids, w["token_embd"])
        a = ops.linear(x, w["blk.0.a"], w["blk.0.bias"])
        left, right = ops.slice(a, 0, 20), ops.multiply_vector(ops.slice(a, 20, 20), w["blk.0.vector"])
        b = ops.linear(x, w["blk.1.b"])
        y = ops.concat([(ops.silu(b) + left, 0, 2), (ops.rms_norm(right, None, 1e-5), 1, 2)])
        product = ops.product(x, w["blk.1.product"])
        heads = ops.rms_norm(b.reshape(4, 5), None, 1e-6)
        heads = ops.scale_rows(heads, ops.linear(x, w["blk.1.gates"])).reshape(20)
        gate = ops.scale_rows(heads.rows(ids_of_rows(ids)), ops.linear(x, w["blk.1.one"]))
        return ops.concat([(y, 0, 1), (product, 40, 1), (gate, 61, 1)])

    def ids_of_rows(ids: Tensor) -> Tensor:
        graph = ids.graph
        return graph.inputs.get("rows") or graph.input("rows", ids.shape, DType.I32)

    def with_rows(backend: Backend) -> F32:
        weights = weights_of(backend, path, cut, ("blk.1.product",))
        graph = Graph()
        graph.output("y", record(graph.input("ids", (Dim("tokens", 9),), DType.I32), weights))
        plan = backend.compile(graph)
        backend.load(lambda share: None)
        ids = np.array([3, 0, 31], np.int32)
        found = plan.launch({"ids": ids, "rows": np.array([2, 2, 0], np.int32)}).rows("y").copy()
        backend.close()
        return found

    rows = ["token_embd", "blk.0.a", "blk.0.bias", "blk.1.b", "blk.1.one", "blk.1.gates"]
    cut = {**dict.fromkeys(rows, 0), "blk.1.product": 1}
    np.testing.assert_array_equal(with_rows(opened(nodes, split, count)), with_rows(open_backend("cpu")))


@on_each
def test_a_vector_that_no_file_contains(tmp_path: Path, nodes: Nodes, split: str, count: int) -> None:
    path = write(tmp_path / "a.gguf", token_embd=uniform(32, 36))

    def product(backend: Backend) -> F32:
        table = Weight((32, 36), name="token_embd", split=0)
        halves = [Weight((36,), constant=0.5, name=f"blk.{layer}.half") for layer in range(2)]
        with open_gguf(path) as file:
            filled = [(half, TensorInfo.filled(half.name, half.shape, 0.5, path)) for half in halves]
            backend.place([(table, file.tensors[table.name]), *filled])
        graph = Graph()
        x = ops.embedding(graph.input("ids", (Dim("tokens", 9),), DType.I32), table)
        graph.output("y", ops.multiply_vector(ops.multiply_vector(x, halves[0]), halves[1]))
        plan = backend.compile(graph)
        backend.load(lambda share: None)
        backend.wait_loaded()
        found = plan.launch({"ids": np.array([3, 0, 31], np.int32)}).rows("y").copy()
        backend.close()
        return found

    np.testing.assert_array_equal(product(opened(nodes, split, count)), product(open_backend("cpu")))


@on_each
def test_experts_with_biases(tmp_path: Path, nodes: Nodes, split: str, count: int) -> None:
    """Each member has rows of every expert; all members know the experts' weights."""
    path = write(
        tmp_path / "a.gguf",
        token_embd=uniform(32, 32),
        blk__0__router=uniform(6, 32),
        blk__0__before=uniform(32, 32),
        blk__0__up=uniform(6, 48, 32),
        blk__0__bias=uniform(6, 48),
        blk__1__down=uniform(6, 32, 48),
    )

    def record(ids: Tensor, w: Weights) -> Tensor:
        x = ops.embedding(ids, w["token_embd"])
        routes = router(ops.linear(x, w["blk.0.router"]), 2, Gating.SOFTMAX)
        groups = group_by_expert(routes, 6)
        rows = dispatch(ops.linear(x, w["blk.0.before"]), groups)
        up = expert_linear(rows, groups, w["blk.0.up"], w["blk.0.bias"])
        return combine(expert_linear(ops.silu(up), groups, w["blk.1.down"]), groups, routes) + x

    names = ["token_embd", "blk.0.router", "blk.0.before", "blk.0.up", "blk.0.bias", "blk.1.down"]
    cut = dict.fromkeys(names, 0)
    assert_same(nodes, split, count, path, record, cut, ("blk.0.bias",))


@on_each
def test_some_outputs_of_a_matrix(tmp_path: Path, nodes: Nodes, split: str, count: int) -> None:
    path = write(
        tmp_path / "a.gguf", token_embd=uniform(600, 32), blk__0__a=uniform(8, 32), blk__1__b=uniform(8, 32)
    )

    def record(ids: Tensor, w: Weights) -> Tensor:
        return ops.first_outputs(ops.embedding(ids, w["token_embd"]), w["token_embd"], 512)

    assert_same(nodes, split, count, path, record, {"token_embd": 0})


@on_each
def test_cells_that_the_host_has_kept(tmp_path: Path, nodes: Nodes, split: str, count: int) -> None:
    """Cells read in parts and written to other cells have the same content when read again."""
    path = write(tmp_path / "a.gguf", blk__0__a=uniform(8, 32), blk__1__b=uniform(8, 32))
    backend = opened(nodes, split, count)
    weights_of(backend, path, {})
    keys, values = (
        backend.kv_buffer(role, 64, 6, 16, DType.I16, layer)
        for layer, role in enumerate((KVRole.KEYS, KVRole.VALUES))
    )
    sizes = backend.kv_bytes(KVRole.KEYS, 64, 6, 16, DType.I16, 0)
    assert sum(sizes.values()) > 0
    graph = Graph()
    cells = graph.input("cells", (Dim("tokens", 40),), DType.I32)
    x = graph.input("x", (cells.shape[0], 96), DType.F32)
    for buffer in (keys, values):
        ops.store(x.reshape(6, 16), cells, buffer)
    plan = backend.compile(graph)
    backend.load(lambda share: None)
    rng = np.random.default_rng(2)
    first, other = (rng.permutation(64)[:40].astype(np.int32) for _ in range(2))
    plan.launch({"cells": first, "x": rng.standard_normal((40, 96)).astype(np.float32)}).wait()
    rows = backend.cell_rows([keys, values])
    block, again = (np.zeros(rows.num_bytes(48), np.uint8) for _ in range(2))
    rows.read(first[:7], block, 5, 48)
    rows.read(first[7:], block, 12, 48)
    rows.write(other[:30], block, 5, 48)
    rows.write(other[30:], block, 35, 48)
    rows.read(other, again, 5, 48)
    assert block.any()
    np.testing.assert_array_equal(again, block)
    full = np.zeros(rows.num_bytes(40), np.uint8)
    rows.read(other, full, 0, 40)
    assert full.any()
    backend.close()


def test_layers_follow_shares(tmp_path: Path, nodes: Nodes) -> None:
    """No member has weights or storage of other members' layers."""
    tensors = {f"blk__{layer}__a": uniform(64, 64) for layer in range(8)}
    path = write(tmp_path / "a.gguf", token_embd=uniform(16, 64), **tensors, output=uniform(16, 64))
    for shares, expected in (((3.0, 1.0), [6, 2]), ((1.0, 1.0), [4, 4]), (None, [4, 4])):
        backend = opened(nodes, "layers", 2, shares)
        weights_of(backend, path, {})
        held = [part.weights for part in backend.memory().devices]
        matrix = 64 * 64 * 4
        assert [size // matrix for size in held] == expected
        assert backend.memory().on_gpus == 0
        names = [part.device for part in backend.memory().devices]
        assert names == [f"127.0.0.1:{server.port}" for server in nodes.servers[:2]]
        counted = [list(backend.kv_bytes(KVRole.KEYS, 16, 2, 16, DType.F16, layer)) for layer in range(8)]
        assert counted == [[names[0]]] * expected[0] + [[names[1]]] * expected[1]
        backend.close()


def test_what_cannot_be_cut_is_said(tmp_path: Path, nodes: Nodes) -> None:
    path = write(
        tmp_path / "a.gguf", blk__0__a=uniform(32, 32), blk__1__b=uniform(32), blk__1__c=uniform(32, 32)
    )
    backend = opened(nodes, "rows", 2)
    weights = weights_of(backend, path, {"blk.0.a": 0, "blk.1.c": 0}, ("blk.1.c",))
    graph = Graph()
    x = graph.input("x", (Dim("rows", 4), 32), DType.F32)
    graph.output("y", ops.linear(x, weights["blk.0.a"], weights["blk.1.b"]))
    with pytest.raises(UnsupportedError, match=r"blk\.1\.b cannot be split by rows"):
        backend.compile(graph)
    graph = Graph()
    x = graph.input("x", (Dim("rows", 4), 32), DType.F32)
    graph.output("y", ops.add_vector(x, weights["blk.1.c"]))
    with pytest.raises(UnsupportedError, match=r"blk\.1\.c is needed whole by rows"):
        backend.compile(graph)
    graph = Graph()
    graph.output("y", graph.input("x", (Dim("rows", 4), 32), DType.F32))
    with pytest.raises(UnsupportedError, match="cannot be an output"):
        backend.compile(graph)
    backend.close()
    backend = opened(nodes, "layers", 2)
    weights = weights_of(backend, path, {})
    graph = Graph()
    x = graph.input("x", (Dim("rows", 4), 32), DType.F32)
    graph.output("y", ops.linear(x, weights["blk.0.a"], weights["blk.1.b"]))
    with pytest.raises(UnsupportedError, match="weights or storage of several nodes"):
        backend.compile(graph)
    backend.close()


@on_each
def test_rows_that_come_with_a_batch(tmp_path: Path, nodes: Nodes, split: str, count: int) -> None:
    """An input is added to cut values; the first member adds it if no member has."""
    path = write(tmp_path / "a.gguf", blk__0__a=uniform(40, 32), blk__1__b=uniform(16, 40))
    found = []
    for backend in (open_backend("cpu"), opened(nodes, split, count)):
        w = weights_of(backend, path, {"blk.0.a": 0, "blk.1.b": 0})
        graph = Graph()
        x = graph.input("x", (Dim("rows", 4), 32), DType.F32)
        more = graph.input("more", (x.shape[0], 40), DType.F32)
        y = ops.linear(x, w["blk.0.a"]) + more
        graph.output("y", ops.linear(y, w["blk.1.b"]))
        graph.output("heads", y.reshape(4, 10))
        plan = backend.compile(graph)
        backend.load(lambda share: None)
        rng = np.random.default_rng(1)
        inputs = {
            name: rng.standard_normal((3, size)).astype(np.float32)
            for name, size in (("x", 32), ("more", 40))
        }
        launch = plan.launch(inputs)
        found.append([launch.rows(name).reshape(3, -1).copy() for name in ("y", "heads")])
        backend.close()
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize("count", [2, 3])
def test_the_largest_elements_of_parts(tmp_path: Path, nodes: Nodes, count: int) -> None:
    """They equal those of whole rows in order, also equal and infinite elements, NaN, and short rows."""
    table = uniform(6, 64)[0]
    table[0] = np.repeat(np.arange(8, dtype=np.float32), 8)[::-1]
    table[1] = np.tile([3, -2], 32)
    more = np.zeros((6, 64), np.float32)
    more[1, 7], more[1, 60], more[3, 50], more[3, 9], more[2, 50] = np.inf, -np.inf, np.inf, np.inf, np.nan
    path = write(
        tmp_path / "a.gguf",
        token_embd=(table, QuantType.F32),
        blk__0__a=(np.eye(64, dtype=np.float32), QuantType.F32),
    )
    wanted = np.array([9, 12, 1, 12, 0, 5], np.int32)
    found = []
    for backend in (open_backend("cpu"), opened(nodes, "rows", count)):
        w = weights_of(backend, path, {"blk.0.a": 0})
        graph = Graph()
        ids = graph.input("ids", (Dim("tokens", 9),), DType.I32)
        y = ops.linear(ops.embedding(ids, w["token_embd"]), w["blk.0.a"])
        y = y + graph.input("more", (ids.shape[0], 64), DType.F32)
        graph.output("top", ops.top_k(y, graph.input("counts", ids.shape, DType.I32), 12))
        graph.output("too many", ops.top_k(y, graph.inputs["counts"], 40))
        plan = backend.compile(graph)
        backend.load(lambda share: None)
        launch = plan.launch({"ids": np.arange(6, dtype=np.int32), "counts": wanted, "more": more})
        for name, most in (("top", 12), ("too many", 40)):
            rows = launch.rows(name, 1, 6).reshape(5, 2, most)
            rows = np.concatenate([launch.rows(name, 0, 1).reshape(1, 2, most), rows])
            found.append(
                [
                    row[index == 2 :, :n].tobytes()
                    for index, (row, n) in enumerate(zip(rows, wanted, strict=True))
                ]
            )
        backend.close()
    assert found[:2] == found[2:]


@pytest.mark.parametrize(("split", "count"), [("layers", 2), ("rows", 2)])
def test_attention_that_comes_later(tmp_path: Path, nodes: Nodes, split: str, count: int) -> None:
    """Its queries wait for other members, so it reads storage of an earlier piece. It uses distances."""
    names = ("blk.0.k", "blk.0.v", "blk.1.a", "blk.1.q")
    sizes = ((32, 64), (32, 64), (64, 64), (64, 64))
    tensors = {name.replace(".", "__"): uniform(*size) for name, size in zip(names, sizes, strict=True)}
    path = write(tmp_path / "a.gguf", **tensors)
    table = np.random.default_rng(4).standard_normal((4, 9)).astype(np.float32)
    rng = np.random.default_rng(8)
    x = rng.standard_normal((100, 64)).astype(np.float32)
    found = []
    for backend in (open_backend("cpu"), opened(nodes, split, count)):
        w = weights_of(backend, path, dict.fromkeys(names, 0))
        keys, values = (
            backend.kv_buffer(role, 128, 2, 16, DType.I16, 0) for role in (KVRole.KEYS, KVRole.VALUES)
        )
        graph, tokens = Graph(), Dim("tokens", 128)
        given = graph.input("x", (tokens, 64), DType.F32)
        cells = graph.input("cells", (tokens,), DType.I32)
        history = graph.input("history", (Dim("history", 128),), DType.I32)
        spans = graph.input("spans", (tokens, 3), DType.I32)
        positions = graph.input("positions", (tokens,), DType.I32)
        k = ops.store(ops.linear(given, w["blk.0.k"]).reshape(2, 16), cells, keys)
        v = ops.store(ops.linear(given, w["blk.0.v"]).reshape(2, 16), cells, values)
        q = ops.linear(ops.linear(given, w["blk.1.a"]), w["blk.1.q"]).reshape(4, 16)
        bias = ops.DistanceBias(table, positions)
        y = ops.attention(q, k, v, Mask(history, spans), 0.25, bias=bias)
        graph.output("y", y.reshape(64))
        plan = backend.compile(graph)
        backend.load(lambda share: None)
        for count_now in (100, 3):
            order = np.arange(count_now, dtype=np.int32)
            seen = np.stack([order * 0, order + 1, order * 0], axis=1)
            inputs = {"x": x[:count_now], "cells": order, "history": order, "spans": seen, "positions": order}
            found.append(plan.launch(inputs).rows("y").copy().reshape(count_now, 64))
        backend.close()
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])


def test_results_that_are_asked_for(tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large results do not come with the reply; parts in groups are joined."""
    monkeypatch.setattr("chaski.ml.sharded.session._SMALL", 16)
    path = write(
        tmp_path / "a.gguf",
        token_embd=uniform(32, 32),
        blk__0__up=uniform(4, 24, 32),
        blk__1__a=uniform(6, 32),
    )
    found = []
    for backend in (open_backend("cpu"), opened(nodes, "rows", 3), opened(nodes, "layers", 2)):
        w = weights_of(backend, path, {"token_embd": 0, "blk.0.up": 0, "blk.1.a": 0})
        graph = Graph()
        x = ops.embedding(graph.input("ids", (Dim("tokens", 9),), DType.I32), w["token_embd"])
        routes = router(ops.slice(x, 0, 4), 2, Gating.SOFTMAX)
        groups = group_by_expert(routes, 4)
        graph.output("up", expert_linear(dispatch(x, groups), groups, w["blk.0.up"]))
        graph.output("a", ops.linear(x, w["blk.1.a"]))
        plan = backend.compile(graph)
        backend.load(lambda share: None)
        launch = plan.launch({"ids": np.array([3, 0, 31, 7, 7], np.int32)})
        later = plan.launch({"ids": np.array([1], np.int32)})
        rows = [launch.rows("up"), launch.rows("a", 1, 4), launch.rows("a", 4), later.rows("up")]
        found.append([np.array(each).reshape(len(each), -1).tobytes() for each in rows])
        backend.close()
    assert found[0] == found[1] == found[2]
