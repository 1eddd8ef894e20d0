"""Key/value storage: written values match ggml's formats to the bit, and keys rotate in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski.errors import UnsupportedError
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, KVRole, Rope
from chaski.ml.reference.cached_ops import hadamard
from tests.backends import FORMS

from .attending import contents
from .both_backends import bound

F32 = npt.NDArray[np.float32]
TYPES = [DType.F32, DType.F16, DType.BF16, DType.I16, DType.Q8_0, DType.Q4_0, DType.Q3_0]
PLAIN_TYPES = TYPES[:3]
PLACES = [("reference", "auto"), *FORMS]
CELLS = 40


def rows_of(heads: int, size: int) -> F32:
    """Return rows of all sizes: some blocks are zero, tiny, or have equal values with both signs."""
    random = np.random.default_rng(3)
    x = random.standard_normal((CELLS, heads * size)) * np.exp(random.uniform(-9, 6, (CELLS, 1)))
    x[3] = 0
    x[4] = 1e-20
    x[5, : heads * size // 2] = 0
    x[6] = np.where(random.random(heads * size) < 0.5, -2.5, 2.5)
    x[7] = np.arange(heads * size) % 9 - 4
    return x.astype(np.float32).reshape(CELLS, heads, size)


def written(
    backend: Backend, directory: Path, x: F32, cells: npt.NDArray[np.int64], role: KVRole, dtype: DType
) -> KVBuffer:
    """Return a buffer with the rows of x (n, heads, size) stored in `cells`."""
    count, heads, size = x.shape
    table = bound(backend, directory, {"x": x.reshape(count, -1)})["x"]
    buffer = backend.kv_buffer(role, CELLS, heads, size, dtype)
    graph = Graph()
    ids = graph.input("ids", (Dim("tokens", count),), DType.I32)
    where = graph.input("where", ids.shape, DType.I32)
    ops.store(ops.embedding(ids, table).reshape(heads, size), where, buffer)
    plan = backend.compile(graph)
    plan.launch({"ids": np.arange(count), "where": cells}).wait()
    return buffer


def rounded(x: F32, dtype: DType, role: KVRole) -> F32:
    """Return x rounded by ggml's Python package, or by the rules of native/kernels."""
    if dtype is DType.I16:
        largest = np.abs(x).max(axis=-1, keepdims=True).astype(np.float64)
        length = np.sqrt((x.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))
        with np.errstate(divide="ignore"):
            factor = np.minimum(46000 / length, 32767 / largest) if role is KVRole.KEYS else 8191 / largest
        levels = np.where(largest < 1e-15, 0, np.rint(x * np.where(largest < 1e-15, 1, factor)))
        return (levels / factor).astype(np.float32)
    if dtype is DType.Q3_0:
        return three_bits(x)
    gguf, quants = pytest.importorskip("gguf"), pytest.importorskip("gguf.quants")
    type = gguf.GGMLQuantizationType[dtype.name]
    found: F32 = quants.dequantize(quants.quantize(x, type), type).astype(np.float32).reshape(x.shape)
    return found


def three_bits(x: F32) -> F32:
    """Return x rounded block by block to the levels -4 to 3 of a scale: 1 / -4.2 of the extreme element."""
    y = np.zeros_like(x).reshape(-1, 32)
    for block, rounded in zip(x.reshape(-1, 32), y, strict=True):
        scale = max(block, key=abs) / np.float32(-4.2)
        if abs(scale) > 1e-15:
            levels = np.floor(block * (np.float32(1) / scale) + np.float32(4.5)).clip(0, 7) - 4
            rounded[:] = np.float32(np.float16(scale)) * levels
    return y.reshape(x.shape)


def spread(x: F32, dtype: DType) -> F32:
    """Return x rotated as before it is stored in a type, or after it was read."""
    size = x.shape[-1]
    return hadamard(x, block=size & -size) if dtype in (DType.Q4_0, DType.Q3_0) else x


@pytest.mark.parametrize(("backend", "isa"), PLACES)
@pytest.mark.parametrize("role", KVRole)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("heads", "size"), [(3, 20), (1, 1), (2, 64), (1, 96)])
def test_rows_are_stored_as_ggml_rounds_them(
    tmp_path: Path, backend: str, isa: str, role: KVRole, dtype: DType, heads: int, size: int
) -> None:
    opened = open_backend(backend, CPUOptions(threads=2, isa=isa))
    block = 32 if dtype.is_in_blocks else 2 if dtype is DType.I16 else 1
    if size % block:
        with pytest.raises(
            UnsupportedError, match=f"blocks of {block}, and the model's heads have {size} el"
        ):
            opened.kv_buffer(role, CELLS, heads, size, dtype)
        return
    x, cells = rows_of(heads, size), np.random.default_rng(5).permutation(CELLS)
    buffer = written(opened, tmp_path, x, cells, role, dtype)
    found = contents(buffer.handle, isa, CELLS, heads, size)
    expected = rounded(spread(x, dtype), dtype, role)
    if dtype is DType.I16:
        # The scale may differ by its own rounding, and a tie between two levels may round either way.
        assert_near(found[cells], expected)
    else:
        np.testing.assert_array_equal(found[cells], expected)


def assert_near(found: F32, expected: F32) -> None:
    """Check that values differ by at most one integer level, and rarely."""
    largest = np.abs(expected).max(axis=-1, keepdims=True)
    off = np.abs(found - expected)
    assert (off <= 1.3e-4 * largest + 1e-20).all()
    assert (off > 1e-6 * largest).mean() < 1e-2


@pytest.mark.parametrize("role", KVRole)
@pytest.mark.parametrize(
    ("dtype", "heads", "size", "dims"),
    [
        *((dtype, heads, size, dims) for dtype in TYPES for heads, size, dims in ((2, 64, 64), (2, 64, 32))),
        *(
            (dtype, heads, size, dims)
            for dtype in (*PLAIN_TYPES, DType.I16)
            for heads, size, dims in ((1, 2, 2), (3, 10, 6))
        ),
    ],
)
def test_rotate_cells(tmp_path: Path, role: KVRole, dtype: DType, heads: int, size: int, dims: int) -> None:
    random = np.random.default_rng(6)
    x = random.standard_normal((CELLS, heads, size)).astype(np.float32)
    cells = random.permutation(CELLS)[:7].astype(np.int32)
    distances = random.integers(0, 50, 7).astype(np.int32)
    frequencies = -(np.float32(100.0) ** (-np.arange(0, dims, 2, dtype=np.float32) / dims))
    before = rounded(spread(x, dtype), dtype, role)
    expected = before.copy()
    moved = turned(spread(before[cells], dtype), distances, frequencies)
    expected[cells] = rounded(spread(moved, dtype), dtype, role)
    # A rotated value between two levels may round to either.
    steps = {DType.F32: 1e-5, DType.F16: 2e-3, DType.BF16: 2e-2, DType.I16: 6e-4, DType.Q8_0: 0.04}
    step = steps.get(dtype, 1.2 if dtype is DType.Q3_0 else 0.6)
    found = []
    for backend, isa in PLACES:
        opened = open_backend(backend, CPUOptions(threads=2, isa=isa))
        buffer = written(opened, tmp_path, x, np.arange(CELLS), role, dtype)
        turn(opened, buffer, cells, distances, frequencies)
        found.append(contents(buffer.handle, isa, CELLS, heads, size))
        np.testing.assert_allclose(found[-1], expected, atol=step)
        assert np.abs(found[-1] - expected).mean() < step / 50
        others = np.setdiff1d(np.arange(CELLS), cells)
        if dtype is DType.I16:
            assert_near(found[-1][others], before[others])
        else:
            np.testing.assert_array_equal(found[-1][others], before[others])
        if (dims % 32 == 0 and dtype is DType.Q8_0) or dtype in PLAIN_TYPES:
            np.testing.assert_array_equal(found[-1][..., dims:], before[..., dims:])
    assert all((one == found[1]).all() for one in found[2:])
    assert np.abs(expected[cells] - before[cells]).max() > 0.1


def turned(x: F32, distances: npt.NDArray[np.int32], frequencies: F32) -> F32:
    """Return x (n, heads, size) with its first pairs rotated by distance · frequency."""
    angles = (distances[:, None] * frequencies)[:, None]
    pairs = x[..., : 2 * len(frequencies)]
    plane = (pairs[..., ::2] + 1j * pairs[..., 1::2]) * np.exp(1j * angles)
    y = x.copy()
    y[..., : 2 * len(frequencies) : 2], y[..., 1 : 2 * len(frequencies) : 2] = plane.real, plane.imag
    return y


def turn(
    backend: Backend,
    buffer: KVBuffer,
    cells: npt.NDArray[np.int32],
    distances: npt.NDArray[np.int32],
    frequencies: F32,
) -> None:
    graph = Graph()
    listed = graph.input("cells", (Dim("cells", CELLS),), DType.I32)
    by = graph.input("distances", listed.shape, DType.I32)
    ops.rotate_cells(listed, ops.rope_table(by, Rope(frequencies)), buffer)
    plan = backend.compile(graph)
    plan.launch({"cells": cells, "distances": distances}).wait()
