"""Encoders of images and of texts on a GPU: the bits of the cpu backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.errors import UnsupportedError
from chaski.ml import open_backend
from chaski.ml.graph import Dim, DType, Graph
from tests import cogvlm, deepseek_ocr, mobilenet
from tests.cuda.devices import BACKENDS
from tests.image.pictures import png

DATA = Path(__file__).parents[1] / "data"

on_each = pytest.mark.parametrize("backend", BACKENDS)


def slow(*names: str) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.long
@on_each
@pytest.mark.parametrize(
    "name", ["qwen25vl", *slow("gemma3", "mistral3", "qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35")]
)
def test_images(backend: str, name: str) -> None:
    found = []
    for each in ("cpu", backend):
        with chaski.load(DATA / "vision" / f"{name}.gguf", threads=1, context=128, backend=each) as llm:
            found.append(llm.logits("the [img-0] is", [png(40, 56)]))
    assert np.isfinite(np.asarray(found[0])).all()
    np.testing.assert_array_equal(np.asarray(found[1]), np.asarray(found[0]))


@pytest.mark.long
@on_each
@pytest.mark.parametrize("name", ["deepseek-ocr", *slow("gemma3n", "cogvlm")])
def test_convolutions_and_matrices_for_pictures(tmp_path: Path, backend: str, name: str) -> None:
    if name == "gemma3n":
        folder = mobilenet.checkpoint(tmp_path / "in", mobilenet.expected("odd")["about"])
    else:
        folder = {"cogvlm": cogvlm, "deepseek-ocr": deepseek_ocr}[name].checkpoint(tmp_path / "in", "usual")
    convert(folder, tmp_path / "model.gguf", "Q8_0")
    found = []
    for each in ("cpu", backend):
        with chaski.load(tmp_path / "model.gguf", threads=1, context=128, backend=each) as llm:
            found.append(llm.logits("the [img-0] is", [png(40, 56)]))
    np.testing.assert_array_equal(np.asarray(found[1]), np.asarray(found[0]))


@pytest.mark.slow
@on_each
def test_layers_that_see_images(tmp_path: Path, backend: str) -> None:
    """Llama 3.2 Vision keeps the image's keys and values in a separate cache for later tokens."""
    convert(DATA / "mllama", tmp_path / "mllama.gguf", "Q8_0")
    found = []
    for each in ("cpu", backend):
        with chaski.load(tmp_path / "mllama.gguf", threads=1, context=64, backend=each) as llm:
            logits = llm.logits("the [img-0] is", [png(40, 56)])
            answer = llm.generate(
                "the [img-0] is", [png(40, 56)], num_predict=6, temperature=0, logprobs=True
            )
            found.append((np.asarray(logits).tobytes(), answer.token_ids, answer.logprobs))
    assert found[0] == found[1]


@pytest.mark.long
@on_each
@pytest.mark.parametrize(
    "name", ["t5encoder", *slow("bert", "modern-bert", "jina-bert-v2", "nomic-bert-moe")]
)
def test_vectors(tmp_path: Path, backend: str, name: str) -> None:
    """T5 uses relative distances; the others have their own norms, poolings, experts and tokens."""
    convert(DATA / "checkpoints" / name, tmp_path / "model.gguf", "F32")
    found = []
    for each in ("cpu", backend):
        with chaski.load(tmp_path / "model.gguf", threads=1, context=64, backend=each) as llm:
            found.append(llm.embed(["the runner carries", "a load"]))
    assert np.any(np.asarray(found[0]))
    np.testing.assert_array_equal(np.asarray(found[1]), np.asarray(found[0]))


@on_each
def test_an_operation_without_a_kernel_is_refused(backend: str) -> None:
    graph = Graph()
    x = graph.input("x", (Dim("rows", 4), 8), DType.F32)
    graph.output("y", graph.record("unheard_of", (x,), x.shape))
    opened = open_backend(backend)
    with pytest.raises(UnsupportedError, match="no kernel for unheard_of: load the model with the cpu"):
        opened.compile(graph)
    opened.close()
