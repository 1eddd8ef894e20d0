"""Quantization against ggml's own code, which xllamacpp contains; run by hand."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quantizing import error, of_ggml
from chaski.formats.quant import Floats, QuantType
from chaski.formats.quantize import quantize
from chaski.formats.searched import BY_IMPORTANCE
from tests.formats.test_quantize import COARSE, IMPORTANCE, SEARCHED, SIMPLE, SIMPLE_BLOCKS, WEIGHTS

pytestmark = pytest.mark.oracle

# The other blocks have an infinite 1 / d, for which ggml's conversion of levels is undefined.
BLOCKS = {name: x for name, x in SIMPLE_BLOCKS.items() if name not in ("denormal", "smallest scales")}
LATTICES = {
    "levels of Q4_0": np.random.default_rng(1).normal(0, 2.5, (4096, 32)).round().clip(-8, 7) * 0.031,
    "levels of Q4_1": np.random.default_rng(2).normal(7.5, 2.5, (4096, 32)).round().clip(0, 15) * 0.031 - 0.2,
}


@pytest.fixture(scope="module")
def ggml() -> ctypes.CDLL:
    module = pytest.importorskip("xllamacpp")
    return ctypes.CDLL(str(next(Path(module.__file__).parent.glob("xllamacpp*.so"))))


def floats(x: np.ndarray, columns: int) -> Floats:
    return np.ascontiguousarray(x[: x.size // columns * columns].reshape(-1, columns), np.float32)


@pytest.mark.parametrize("name", [*WEIGHTS, *BLOCKS])
@pytest.mark.parametrize("type", [*(type for type in SIMPLE if type is not QuantType.F32), *COARSE])
def test_simple_types_have_the_bytes_of_ggml(ggml: ctypes.CDLL, type: QuantType, name: str) -> None:
    x = floats(np.resize((WEIGHTS | BLOCKS)[name], (4096, 32)), 128)
    if type is QuantType.NVFP4:
        x = x.clip(-2688, 2688)  # ggml cuts larger values
    np.testing.assert_array_equal(quantize(x, type), of_ggml(ggml, x, type)())


@pytest.mark.parametrize("name", [*WEIGHTS, *LATTICES])
@pytest.mark.parametrize("type", SEARCHED)
def test_searched_types_are_as_good_as_ggml(ggml: ctypes.CDLL, type: QuantType, name: str) -> None:
    x = floats((WEIGHTS | LATTICES)[name].reshape(-1), 256)
    found, wanted = (error(x, type, data) for data in (quantize(x, type), of_ggml(ggml, x, type)()))
    assert found < 1.01 * wanted


@pytest.mark.parametrize("name", [*WEIGHTS, *LATTICES])
@pytest.mark.parametrize("type", BY_IMPORTANCE)
def test_importance_is_used_as_well_as_by_ggml(ggml: ctypes.CDLL, type: QuantType, name: str) -> None:
    x = floats((WEIGHTS | LATTICES)[name].reshape(-1), 2048)[:16]
    data = (quantize(x, type, importance=IMPORTANCE), of_ggml(ggml, x, type, IMPORTANCE)())
    found, wanted = (error(x, type, each, IMPORTANCE) for each in data)
    assert found < 1.01 * wanted + 1e-6
