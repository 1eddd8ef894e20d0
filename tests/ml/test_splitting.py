"""Weights declare where they may be cut: parts that are computed separately give the bits of the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, Weight
from chaski.ml.nn import Linear, TransposedLinear

from .attending import Attender

RNG = np.random.default_rng(3)
F32 = npt.NDArray[np.float32]


def uniform(*shape: int) -> F32:
    return RNG.standard_normal(shape).astype(np.float32)


def product(layer: Linear | TransposedLinear, path: Path, x: F32, part: slice | None = None) -> F32:
    """Return the layer's result for `x` with all its weights, or with a part along their declared axis."""
    backend = open_backend("cpu", CPUOptions(threads=2))
    placed = []
    with open_gguf(path) as file:
        for name, weight in layer.weights():
            info = file.tensors[name]
            if part is not None:
                assert weight.split is not None
                info = info.part(name, weight.split, part)
                weight.shape = info.shape
            placed.append((weight, info))
        backend.place(placed)
        backend.load(lambda _: None)
        backend.wait_loaded()
        graph = Graph()
        given = graph.input("x", (Dim("rows", len(x)), x.shape[1]), DType.F32)
        graph.output("y", layer(given))
        return backend.compile(graph).launch({"x": x}).rows("y").copy()


@pytest.mark.parametrize(
    "type", [QuantType.F32, QuantType.F16, QuantType.Q8_0, QuantType.Q4_K], ids=lambda t: t.name
)
@pytest.mark.parametrize("tokens", [1, 9])
def test_outputs_of_a_linear_layer(tmp_path: Path, type: QuantType, tokens: int) -> None:
    path = tmp_path / "weights.gguf"
    tensors = {"weight": (uniform(40, 256), type), "bias": (uniform(40), QuantType.F32)}
    write_gguf(path, {"general.architecture": "test"}, tensors)
    x = uniform(tokens, 256)
    whole = product(Linear(256, 40), path, x)
    parts = [product(Linear(256, 40), path, x, part) for part in (slice(0, 24), slice(24, 40))]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_outputs_of_a_transposed_layer(tmp_path: Path) -> None:
    path = tmp_path / "weights.gguf"
    write_gguf(path, {"general.architecture": "test"}, {"weight": (uniform(37, 40), QuantType.F32)})
    x = uniform(5, 37)
    whole = product(TransposedLinear(37, 40), path, x)
    parts = [product(TransposedLinear(37, 40), path, x, part) for part in (slice(0, 24), slice(24, 40))]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("type", [DType.F32, DType.I16, DType.Q8_0])
def test_heads_of_attention(tmp_path: Path, type: DType) -> None:
    """It cuts key/value heads, each with the query heads that share it."""
    q, k, v = uniform(6, 8, 32), uniform(90, 4, 32), uniform(90, 4, 32)
    cells = np.arange(90, dtype=np.int32)
    spans = np.array([(0, 84 + i, 0) for i in range(6)], np.int32)

    def attended(heads: slice) -> F32:
        queries = q[:, 2 * heads.start : 2 * heads.stop]
        attender = Attender(tmp_path, "cpu", queries, k[:, heads], v[:, heads], cells, types=(type, type))
        return attender.attend(np.arange(6), spans)

    parts = [attended(heads) for heads in (slice(0, 1), slice(1, 4))]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), attended(slice(0, 4)))


def test_activations_have_the_nominal_type_of_their_graph() -> None:
    """The cpu computes them in float32 in any case, with the same values."""
    x = uniform(4, 32)
    found = []
    for dtype in (DType.F32, DType.BF16):
        graph = Graph(dtype)
        given = graph.input("x", (Dim("rows", 4), 32), DType.F32)
        y = ops.softplus(ops.rms_norm(given, None, 1e-5)) + given
        graph.output("y", y.reshape(8, 4).reshape(32))
        assert {node.dtype for node in graph.nodes if node.op in ("rms_norm", "softplus", "add")} == {dtype}
        assert given.dtype is DType.F32
        for backend in ("cpu", "reference"):
            plan = open_backend(backend).compile(graph)
            found.append(plan.launch({"x": x}).rows("y").copy())
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])


def test_a_weight_that_says_nothing_is_whole_everywhere() -> None:
    assert Weight((3, 4)).split is None
