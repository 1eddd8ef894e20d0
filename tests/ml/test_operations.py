"""Every operation on the cpu backend against its definition on the reference backend, on odd sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski import _native
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import BackendOptions, open_backend, ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Mask, Tensor, Weight

MAX_TOKENS = 9
RNG = np.random.default_rng(7)

Arrays = dict[str, npt.NDArray[np.float32]]


def bound(backend: Backend, directory: Path, arrays: Arrays) -> dict[str, Weight]:
    """Float32 weights that went through a file, as a model's do."""
    path = directory / "weights.gguf"
    tensors = {name: (array, QuantType.F32) for name, array in arrays.items()}
    write_gguf(path, {"general.architecture": "test"}, tensors)
    weights = {name: Weight(array.shape, name=name) for name, array in arrays.items()}
    with open_gguf(path) as file:
        backend.bind([(weights[name], file.tensors[name]) for name in arrays], lambda _: None)
    return weights


def results(
    directory: Path,
    arrays: Arrays,
    record: Callable[[Tensor, dict[str, Weight], Graph], Tensor],
    tokens: int,
    isa: str,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """What both backends make of a graph over embedded ids: (reference, cpu)."""
    found = []
    ids = RNG.integers(0, len(arrays["table"]), tokens)
    for backend in (
        open_backend("reference", BackendOptions()),
        open_backend("cpu", BackendOptions(threads=2, isa=isa)),
    ):
        weights = bound(backend, directory, arrays)
        graph = Graph()
        symbol = graph.input("ids", (Dim("tokens", MAX_TOKENS),), DType.I32)
        graph.output("y", record(symbol, weights, graph))
        plan = backend.compile(graph)
        plan.inputs["ids"][:tokens] = ids
        plan.run({"tokens": tokens})
        found.append(plan.output("y").copy())
    return found[0], found[1]


def uniform(*shape: int) -> npt.NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(params=_native.isa_names())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("size", [1, 5, 16, 33, 64])
@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_rms_norm(tmp_path: Path, isa: str, size: int, tokens: int) -> None:
    arrays = {"table": uniform(11, size), "weight": uniform(size)}
    expected, found = results(
        tmp_path,
        arrays,
        lambda ids, w, _: ops.rms_norm(ops.embedding(ids, w["table"]), w["weight"], 1e-5),
        tokens,
        isa,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0])
def test_swiglu_over_the_whole_range_of_exp(tmp_path: Path, isa: str, scale: float) -> None:
    arrays = {"table": uniform(11, 37) * np.float32(scale), "up": uniform(11, 37)}
    expected, found = results(
        tmp_path,
        arrays,
        lambda ids, w, _: ops.swiglu(ops.embedding(ids, w["table"]), ops.embedding(ids, w["up"])),
        7,
        isa,
    )
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-30)


def test_sum_and_product_with_bias_and_residual(tmp_path: Path, isa: str) -> None:
    arrays = {"table": uniform(11, 40), "weight": uniform(40, 40), "bias": uniform(40)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"])
        y = x + ops.linear(x, w["weight"], w["bias"])
        return ops.linear(y, w["weight"]) + y + x

    expected, found = results(tmp_path, arrays, record, 5, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("heads", "size", "dims"), [(1, 2, 2), (3, 10, 6), (4, 64, 64)])
def test_rope(tmp_path: Path, isa: str, heads: int, size: int, dims: int) -> None:
    arrays = {"table": uniform(11, heads * size)}
    frequencies = np.float32(100.0) ** (-np.arange(0, dims, 2, dtype=np.float32) / dims)

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"]).reshape(heads, size)
        return ops.rope(x, ops.rope_table(ids, frequencies)).reshape(heads * size)

    expected, found = results(tmp_path, arrays, record, 8, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "value_size"), [(1, 1, 16, 16), (6, 2, 20, 12), (8, 1, 64, 48)]
)
@pytest.mark.parametrize("history", [1, 63, 64, 65, 200])
def test_attention_over_scattered_cells(
    tmp_path: Path, isa: str, heads: int, kv_heads: int, size: int, value_size: int, history: int
) -> None:
    cells = RNG.permutation(256)[:history].astype(np.int32)
    tokens = min(history, MAX_TOKENS)
    # The tokens are the last of the history; one of them sees a window only.
    spans = np.array([[0, history - tokens + i + 1, 0] for i in range(tokens)], np.int32)
    window = spans[tokens // 2, 1] // 2
    spans[tokens // 2] = [window, spans[tokens // 2, 1], window]
    values = {
        "q": uniform(tokens, heads * size),
        "k": uniform(history, kv_heads * size),
        "v": uniform(history, kv_heads * value_size),
    }
    found = [
        _attend(tmp_path, name, isa, values, cells, spans, heads, kv_heads) for name in ("reference", "cpu")
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
@pytest.mark.parametrize(("heads", "size", "dims"), [(1, 2, 2), (3, 10, 6), (2, 64, 64)])
def test_rotate_cells(tmp_path: Path, dtype: DType, heads: int, size: int, dims: int) -> None:
    stored = uniform(20, heads * size)
    cells = RNG.permutation(20)[:7].astype(np.int32)
    angles = RNG.integers(0, 50, 7).astype(np.int32)
    frequencies = -(np.float32(100.0) ** (-np.arange(0, dims, 2, dtype=np.float32) / dims))
    expected, before = (
        _rotated(tmp_path, "reference", "auto", DType.F32, stored, heads, cells[:count], angles, frequencies)
        for count in (7, 0)
    )
    np.testing.assert_allclose(before, stored, atol=1e-7)
    exact = {DType.F32: 1e-6, DType.F16: 2e-3, DType.BF16: 2e-2}[dtype]
    found = [
        _rotated(tmp_path, "cpu", name, dtype, stored, heads, cells, angles, frequencies)
        for name in _native.isa_names()
    ]
    np.testing.assert_allclose(found[0], expected, rtol=exact, atol=exact)
    assert all((one == found[0]).all() for one in found)
    assert np.abs(expected[cells] - stored[cells]).max() > 0.1
    untouched = _rotated(tmp_path, "cpu", "auto", dtype, stored, heads, cells[:0], angles, frequencies)
    others = np.setdiff1d(np.arange(20), cells)
    assert (found[0][others] == untouched[others]).all()
    assert (
        found[0].reshape(20, heads, size)[..., dims:] == untouched.reshape(20, heads, size)[..., dims:]
    ).all()


def _rotated(
    directory: Path,
    name: str,
    isa: str,
    dtype: DType,
    stored: npt.NDArray[np.float32],
    heads: int,
    cells: npt.NDArray[np.int32],
    angles: npt.NDArray[np.int32],
    frequencies: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]:
    """Fill a buffer, rotate some cells, and read it as the values of tokens that see one cell each."""
    backend = open_backend(name, BackendOptions(threads=2, isa=isa))
    count, width = stored.shape
    buffer = backend.kv_buffer(count, heads, width // heads, dtype)
    with_file = bound(backend, directory, {"x": stored})
    graph = Graph()
    ids = graph.input("ids", (Dim("tokens", count),), DType.I32)
    spans = graph.input("spans", (ids.shape[0], 3), DType.I32)
    turned = graph.input("turned", (Dim("turned", count),), DType.I32)
    distances = graph.input("distances", turned.shape, DType.I32)
    x = ops.embedding(ids, with_file["x"]).reshape(heads, width // heads)
    ops.store(x, ids, buffer)
    values = ops.rotate_cells(turned, ops.rope_table(distances, frequencies), buffer)
    y = ops.attention(x, values, values, Mask(ids, spans), 1.0)
    graph.output("y", y.reshape(width))
    plan = backend.compile(graph)
    plan.inputs["ids"][:] = np.arange(count)
    plan.inputs["spans"][:] = [(i, i + 1, 0) for i in range(count)]
    plan.inputs["turned"][: len(cells)] = cells
    plan.inputs["distances"][: len(cells)] = angles[: len(cells)]
    plan.run({"tokens": count, "turned": len(cells)})
    return plan.output("y").copy()


def _attend(
    directory: Path,
    name: str,
    isa: str,
    values: Arrays,
    cells: npt.NDArray[np.int32],
    spans: npt.NDArray[np.int32],
    heads: int,
    kv_heads: int,
) -> npt.NDArray[np.float32]:
    """Store k and v cell by cell through a plan of their own, then attend with q."""
    backend = open_backend(name, BackendOptions(threads=2, isa=isa))
    size, value_size = values["k"].shape[1] // kv_heads, values["v"].shape[1] // kv_heads
    keys = backend.kv_buffer(256, kv_heads, size, DType.F32)
    vals = backend.kv_buffer(256, kv_heads, value_size, DType.F32)
    with_file = bound(backend, directory, values)
    graph = Graph()
    ids = graph.input("ids", (Dim("stored", len(cells)),), DType.I32)
    where = graph.input("where", ids.shape, DType.I32)
    tokens = Dim("tokens", len(spans))
    rows = graph.input("rows", (tokens,), DType.I32)
    history = graph.input("history", (Dim("history", len(cells)),), DType.I32)
    span = graph.input("spans", (tokens, 3), DType.I32)
    k = ops.store(ops.embedding(ids, with_file["k"]).reshape(kv_heads, size), where, keys)
    v = ops.store(ops.embedding(ids, with_file["v"]).reshape(kv_heads, value_size), where, vals)
    q = ops.embedding(rows, with_file["q"]).reshape(heads, size)
    y = ops.attention(q, k, v, Mask(history, span), size**-0.5)
    graph.output("y", y.reshape(heads * value_size))
    plan = backend.compile(graph)
    plan.inputs["ids"][:] = np.arange(len(cells))
    plan.inputs["where"][:] = cells
    plan.inputs["rows"][:] = np.arange(len(spans))
    plan.inputs["history"][:] = cells
    plan.inputs["spans"][:] = spans
    plan.run({"stored": len(cells), "tokens": len(spans), "history": len(cells)})
    return plan.output("y").copy()
