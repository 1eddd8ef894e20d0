"""Logits and greedy tokens of small Llama files against transformers and llama.cpp.

tools/fixtures/make_llama.py and make_llama_quantized.py make the files and the expected numbers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from tests.backends import USUAL

DATA = Path(__file__).parents[1] / "data" / "llama"
FLOAT_MODELS = ["llama2", "llama31", "biased"]
QUANTIZED = sorted(path.stem for path in (DATA / "quantized").glob("*.gguf"))
EVERY_FILE = [f"{name}.f32" for name in FLOAT_MODELS] + [f"quantized/{name}" for name in QUANTIZED]

Array = NDArray[np.float32]


@cache
def expected(name: str) -> dict[str, NDArray[Any]]:
    with np.load(DATA / f"{name}.npz") as arrays:
        return dict(arrays)


def ids_of(file: str) -> list[int]:
    """Return the longest prompt with golden numbers for this file."""
    is_quantized = file.startswith("quantized/")
    arrays = expected(file if is_quantized else file.split(".")[0])
    return [int(token) for token in arrays["ids" if is_quantized else "ids_90"]]


def logits(
    file: str,
    ids: list[int],
    backend: str = USUAL,
    threads: int = 2,
    num_batch: int = 512,
    kv_type: str | None = None,
) -> Array:
    model = chaski.load(
        DATA / f"{file}.gguf",
        backend=backend,
        threads=threads,
        context=128,
        num_batch=num_batch,
        kv_type=kv_type,
    )
    return np.asarray(model.logits(ids))


@pytest.mark.parametrize("length", [1, 7, 90])
@pytest.mark.parametrize("name", FLOAT_MODELS)
def test_reference_backend_equals_transformers(name: str, length: int) -> None:
    arrays = expected(name)
    found = logits(f"{name}.f32", arrays[f"ids_{length}"].tolist(), backend="reference")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, arrays[f"logits_{length}"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [1, 7, 90])
@pytest.mark.parametrize("name", FLOAT_MODELS)
@pytest.mark.parametrize(("kv_type", "expectation"), [(None, ""), ("f16", "_f16_cache")])
def test_cpu_backend_equals_transformers(
    name: str, length: int, kv_type: str | None, expectation: str
) -> None:
    """It compares keys and values in float32, the default here, and in float16 on both sides."""
    arrays = expected(name)
    found = logits(f"{name}.f32", arrays[f"ids_{length}"].tolist(), kv_type=kv_type)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, arrays[f"logits_{length}{expectation}"], rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", QUANTIZED)
def test_reference_backend_is_exact_for_quantized_weights(name: str) -> None:
    arrays = expected(f"quantized/{name}")
    found = logits(f"quantized/{name}", arrays["ids"].tolist(), backend="reference")
    np.testing.assert_allclose(found, arrays["exact"], rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", QUANTIZED)
def test_cpu_backend_is_as_near_to_exact_as_llama_cpp(name: str) -> None:
    """Both round activations differently: the errors are similar, and differ by at most their sum."""
    arrays = expected(f"quantized/{name}")
    exact, golden = arrays["exact"], arrays["llama_cpp"]
    found = logits(f"quantized/{name}", arrays["ids"].tolist())
    noise = root_mean_square(golden - exact)
    assert root_mean_square(found - exact) < 2 * noise
    assert root_mean_square(found - golden) < 3 * noise


def root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def test_every_quantized_type_has_a_file() -> None:
    assert len(QUANTIZED) == 15


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("name", ["llama2", "llama31"])
def test_greedy_tokens_equal_llama_cpp(name: str, kind: str) -> None:
    arrays = expected(name)
    model = chaski.load(DATA / f"{name}.{kind}.gguf", context=128)
    answer = model.generate(arrays["ids_7"].tolist(), num_predict=64, temperature=0)
    assert list(answer.token_ids) == arrays[f"greedy_{kind}"].tolist()


@pytest.mark.parametrize("file", EVERY_FILE)
def test_logits_do_not_depend_on_chunks(file: str) -> None:
    ids = ids_of(file)
    whole = logits(file, ids)
    for num_batch in (8, 1):
        np.testing.assert_array_equal(logits(file, ids, num_batch=num_batch), whole)


@pytest.mark.parametrize("file", EVERY_FILE)
def test_logits_do_not_depend_on_threads(file: str) -> None:
    ids = ids_of(file)
    np.testing.assert_array_equal(logits(file, ids, threads=1), logits(file, ids, threads=2))
