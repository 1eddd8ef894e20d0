"""Quantization against ggml's own code, which xllamacpp contains; run by hand."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quantizing import error, of_ggml
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.importance import read_importance
from chaski.formats.quant import Floats, QuantType
from chaski.formats.quantize import QUANTIZABLE, quantize
from chaski.formats.searched import BY_IMPORTANCE
from tests.formats.test_quantize import (
    COARSE,
    FEW_LEVELS,
    IMPORTANCE,
    SEARCHED,
    SIMPLE,
    SIMPLE_BLOCKS,
    WEIGHTS,
)
from tests.real_weights import fetch_smollm2

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
@pytest.mark.parametrize("type", [*SEARCHED, *FEW_LEVELS])
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


def on_few_values(*values: float) -> Floats:
    return floats(np.random.default_rng(3).choice(values, (64, 2048)), 2048)


FEW_VALUES = {
    "two": on_few_values(-0.1, 0.1),
    "three": on_few_values(-0.1, 0, 0.1),
    "four": on_few_values(-0.1, 0, 0.1, 0.2),
    "seventeen": on_few_values(*range(-8, 9)),
}
# Blocks hold few values exactly but for the rounding of their scales to half precision.
ROUNDED_SCALE = 2**-12


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("name", FEW_VALUES)
@pytest.mark.parametrize("type", QUANTIZABLE)
def test_few_values(ggml: ctypes.CDLL, type: QuantType, name: str, is_weighted: bool) -> None:
    x = FEW_VALUES[name]
    importance = IMPORTANCE if is_weighted and type in BY_IMPORTANCE else None
    shares = 1 if importance is None else importance
    data = (quantize(x, type, importance=importance), of_ggml(ggml, x, type, importance)())
    found, wanted = (error(x, type, each, shares) for each in data)
    assert found < 1.01 * wanted + ROUNDED_SCALE


ROWS = 48  # of each matrix: all types of all matrices take minutes
TEXT = Path(__file__).parents[1] / "data" / "evaluation.txt"


@pytest.fixture(scope="module")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Floats, Floats]]:
    """Return rows of the matrices of SmolLM2, on the grid of Q4_1, and the importance of columns."""
    folder = tmp_path_factory.mktemp("smollm2")
    model, found = fetch_smollm2(folder), folder / "importance.gguf"
    command = [sys.executable, "-m", "chaski", "imatrix", str(model), str(TEXT), "--out", str(found)]
    subprocess.run([*command, "--chunks", "4"], capture_output=True, check=True)
    importance, matrices = read_importance(found), []
    with open_gguf(model) as file:
        for name, tensor in file.tensors.items():
            columns = importance.of(name, tensor.shape)
            if columns is None:
                continue
            together = 1 if tensor.shape[-1] % 256 == 0 else 4  # short rows do not fill super-blocks
            picked = np.random.default_rng(1).permutation(tensor.shape[0])[:ROWS]
            x = dequantize(tensor.data, tensor.type, tensor.shape)[picked]
            x = floats(x, together * tensor.shape[-1])
            matrices.append((name, x, np.tile(columns[0], together)))
    return matrices


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("type", QUANTIZABLE)
def test_real_matrices_lose_no_more_than_with_ggml(
    ggml: ctypes.CDLL, matrices: list[tuple[str, Floats, Floats]], type: QuantType, is_weighted: bool
) -> None:
    for name, x, columns in matrices:
        importance = columns if is_weighted and type in BY_IMPORTANCE else None
        shares = 1 if importance is None else importance
        data = (quantize(x, type, importance=importance), of_ggml(ggml, x, type, importance)())
        found, wanted = (error(x, type, each, shares) for each in data)
        assert found < 1.01 * wanted + 1e-6, name
