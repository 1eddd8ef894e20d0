"""Rows that are sent as int8 give the same products, bit by bit, whatever their values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.simulated.shards import rounded_bytes
from chaski import _native
from chaski.errors import ClusterError
from chaski.formats.quant import QuantType
from chaski.formats.quantize import quantize
from chaski.ml.sharded.rounding import RoundedRows

F32 = npt.NDArray[np.float32]

WIDTH, ROWS = 1024, 200
FORMS = pytest.mark.parametrize("block", [32, 256])


def distributions() -> Iterator[npt.NDArray[np.float64]]:
    """Return rows of all kinds: usual, flat, with too large block sums, and at the edges of the rule."""
    random = np.random.default_rng(7)
    shape = (ROWS, WIDTH)
    normal = random.standard_normal(shape)
    yield normal
    yield random.uniform(-1, 1, shape)
    yield normal**5
    yield np.sign(normal) * random.uniform(0.9, 1.0, shape)
    yield np.where(random.random(shape) < 0.02, normal, 0.0)
    # Blocks whose largest element is just below or above the whole's maximum times a power of two.
    powers = 2.0 ** -random.integers(0, 6, (ROWS, WIDTH // 32, 1)) * random.choice([1 - 1e-7, 1, 1 + 1e-7], 1)
    yield (np.clip(random.standard_normal((ROWS, WIDTH // 32, 32)), -1, 1) * powers).reshape(shape)
    # Halves between two numbers of int8, and their neighbours.
    halves = (random.integers(-127, 128, shape) + 0.5) / 127 * 2.0 ** -random.integers(0, 5, shape)
    halves[:, ::256] = 1.0
    yield np.nextafter(halves, random.choice([-9.0, 9.0], shape), dtype=np.float64)
    yield normal * 10.0 ** random.integers(-38, 38, (ROWS, 1))
    # The limit of a block's sums, plus or minus one.
    yield (random.choice([63, 64, 65], shape) + random.uniform(-0.5, 0.5, shape)) * random.choice(
        [-1, 1], shape
    )


def products(x: F32, block: int) -> bytes:
    """Return products with a matrix of a type that rounds in such blocks."""
    type = QuantType.Q4_K if block == 256 else QuantType.Q8_0
    weights = np.random.default_rng(3).standard_normal((32, WIDTH)).astype(np.float32)
    matrix = _native.pack_matrix(int(type), quantize(weights, type).reshape(-1), 32, WIDTH)
    return _native.matmul(matrix, x, in_super_blocks=block == 256).tobytes()


@FORMS
def test_products_have_the_same_bits(block: int) -> None:
    for values in distributions():
        x = values.astype(np.float32)
        again = RoundedRows.of(x, block).floats()
        assert products(again, block) == products(x, block)


@FORMS
def test_what_is_not_finite_travels_as_it_is(block: int) -> None:
    x = np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)
    x[0, 5], x[2, 700] = np.nan, np.inf
    again = RoundedRows.of(x, block).floats()
    assert products(again, block) == products(x, block)


@FORMS
def test_usual_rows_are_rounded(block: int) -> None:
    x = np.random.default_rng(2).standard_normal((1000, WIDTH)).astype(np.float32)
    found = RoundedRows.of(x, block)
    least = rounded_bytes(len(x), WIDTH, block)
    assert least <= found.nbytes < 1.05 * least
    assert least < 0.29 * x.nbytes


def test_wrong_bytes_are_refused() -> None:
    x = np.ones((4, WIDTH), np.float32)
    found = RoundedRows.of(x, 256)
    for data in (found.data[:-1], np.append(found.data, found.data[:1]), found.data[:0]):
        with pytest.raises(ClusterError, match="are not those of 4 rows of 1024"):
            RoundedRows(4, WIDTH, 256, data).floats()
    with pytest.raises(ClusterError, match="1000 elements are no multiple of 256"):
        RoundedRows(4, 1000, 256, found.data).floats()
