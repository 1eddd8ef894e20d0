"""Latent attention: values that are the ends of keys, and a matrix for each head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chaski import _native
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import BackendOptions, CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, Weight
from chaski.ml.products import head_linear

from .attending import F32, I32, Attender
from .both_backends import uniform
from .test_attention import causal, normal

ISAS = [pytest.param(isa, marks=[pytest.mark.long] * (isa == "portable")) for isa in _native.isa_names()]
FLOATS = (DType.F32, DType.F16, DType.BF16)
HISTORY, HEADS, SIZE = 330, 6, 96


def attender(
    directory: Path,
    k: F32,
    v: F32 | int,
    dtype: DType,
    isa: str,
    *,
    backend: str = "cpu",
    cells: I32 | None = None,
    flash: bool = True,
) -> Attender:
    q = normal(HISTORY, HEADS, SIZE)
    cells = np.arange(HISTORY, dtype=np.int32) + 5 if cells is None else cells
    options = [BackendOptions(flash), CPUOptions(threads=2, isa=isa)]
    return Attender(directory, backend, q, k, v, cells, types=(dtype, dtype), options=options)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "dtype", [*FLOATS, DType.Q8_0, DType.Q4_0, DType.Q3_0], ids=lambda dtype: dtype.value
)
@pytest.mark.parametrize("value_size", [32, 64, 80])
def test_the_ends_of_keys_as_values_have_the_bits_of_stored_values(
    tmp_path: Path, isa: str, dtype: DType, value_size: int
) -> None:
    if dtype.is_in_blocks and value_size % 32:
        pytest.skip("such values are not whole blocks, so they cannot be stored by themselves")
    if dtype in (DType.Q4_0, DType.Q3_0) and value_size == 64:
        pytest.skip(f"heads of 64 elements are rotated in blocks of 64, those of {SIZE} in blocks of 32")
    k = normal(HISTORY, 1, SIZE)
    rows, spans = np.arange(40), causal(HISTORY, 40)
    for flash in (True, False) if dtype in FLOATS else (True,):
        found, expected = (
            attender(tmp_path, k, v, dtype, isa, flash=flash).attend(rows, spans)
            for v in (value_size, np.ascontiguousarray(k[..., SIZE - value_size :]))
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I16, DType.Q8_0], ids=lambda d: d.value)
@pytest.mark.parametrize("value_size", [36, 64, 96])
def test_values_in_keys_are_near_the_reference(tmp_path: Path, dtype: DType, value_size: int) -> None:
    k = normal(HISTORY, 1, SIZE)
    expected, *found = (
        attender(tmp_path, k, value_size, dtype, isa, backend=backend).attend(
            np.arange(5), causal(HISTORY, 5)
        )
        for backend, isa in (("reference", "auto"), *(("cpu", isa) for isa in _native.isa_names()))
    )
    close = {DType.F32: 2e-6, DType.F16: 2e-6, DType.I16: 3e-4, DType.Q8_0: 4e-3}[dtype]
    np.testing.assert_allclose(found[0], expected, atol=close)
    assert all((each == found[0]).all() for each in found)


@pytest.mark.parametrize("dtype", [DType.F16, DType.I16, DType.Q8_0], ids=lambda dtype: dtype.value)
def test_their_bits_depend_on_nothing_but_what_a_token_sees(tmp_path: Path, dtype: DType) -> None:
    k, rows = normal(HISTORY, 1, SIZE), np.arange(HISTORY)
    random = np.random.default_rng(2)
    whole = attender(tmp_path, k, 64, dtype, "auto").attend(rows, causal(HISTORY, HISTORY))
    for cells in (random.permutation(1024)[:HISTORY], np.arange(HISTORY) + 16 * (np.arange(HISTORY) // 100)):
        other = attender(tmp_path, k, 64, dtype, "auto", cells=cells.astype(np.int32))
        for row in (0, 100, 257, HISTORY - 1):
            alone = other.attend([row], [(0, row + 1, 0)], other.cells[: row + 1])
            np.testing.assert_array_equal(alone, whole[row : row + 1])
        windows = other.attend([300, 310], [(10, 301, 10), (290, 311, 290)])
        trimmed = other.attend([310], [(0, 21, 290)], other.cells[290:])
        np.testing.assert_array_equal(windows[1:], trimmed)


def products(isa: str, path: Path, tokens: int, heads: int, *, apart: bool) -> F32:
    """Multiply rows of a table by the matrices of heads: by one operation, or by one for each head."""
    backend = open_backend("cpu", CPUOptions(threads=2, isa=isa))
    with open_gguf(path) as file:
        weights = {name: Weight(info.shape, name=name) for name, info in file.tensors.items()}
        backend.place([(weights[name], info) for name, info in file.tensors.items()])
        backend.load(lambda _: None)
        graph = Graph()
        x = ops.embedding(graph.input("ids", (Dim("tokens", 300),), DType.I32), weights["table"])
        _, rows, columns = weights["heads"].shape
        if apart:
            slices = [ops.slice(x, head * columns, columns) for head in range(heads)]
            results = [ops.linear(part, weights[f"head.{head}"]) for head, part in enumerate(slices)]
            y = ops.concat([(each, head * rows, 1) for head, each in enumerate(results)])
        else:
            y = head_linear(x.reshape(heads, columns), weights["heads"]).reshape(heads * rows)
        graph.output("y", y)
        ids = np.arange(tokens, dtype=np.int32)
        return backend.compile(graph).launch({"ids": ids}).rows("y").copy()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("type", "columns"),
    [(QuantType.F32, 40), (QuantType.F16, 64), (QuantType.Q8_0, 64), (QuantType.Q4_K, 256)],
    ids=str,
)
def test_one_product_of_all_heads_has_the_bits_of_a_product_for_each(
    tmp_path: Path, isa: str, type: QuantType, columns: int
) -> None:
    heads, path = 3, tmp_path / "heads.gguf"
    matrices, table = uniform(heads, 150, columns), uniform(300, heads * columns)
    parts = {f"head.{head}": (matrix, type) for head, matrix in enumerate(matrices)}
    tensors = {"table": (table, QuantType.F32), "heads": (matrices, type), **parts}
    write_gguf(path, {"general.architecture": "test"}, tensors)
    alone = products(isa, path, 1, heads, apart=False)
    for tokens in (1, 2, 300):
        found = products(isa, path, tokens, heads, apart=False)
        np.testing.assert_array_equal(found, products(isa, path, tokens, heads, apart=True))
        np.testing.assert_array_equal(found[:1], alone)
    if type is QuantType.F32:
        expected = np.einsum("hc,hrc->hr", table[0].reshape(heads, columns), matrices).reshape(1, -1)
        np.testing.assert_allclose(alone, expected, rtol=1e-4, atol=1e-4)
