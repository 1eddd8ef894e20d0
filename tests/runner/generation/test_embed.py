"""Embeddings of the llama2 fixture, turned into an embedding model by its metadata, against llama.cpp."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import chaski
from chaski.errors import OptionError, UnsupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.model.program import Program
from tests.backends import BACKENDS
from tests.tiny_llama import write_tiny_llama

DATA = Path(__file__).parents[2] / "data" / "llama"
NUMBERS = {"mean": 1, "first": 2, "last": 3}
TEXTS = ["hello there", "x", "a text that is longer than the others, so that it takes several batches"]


@pytest.fixture(scope="module", params=["mean", "first", "last"])
def pooling(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors_equal_those_of_llama_cpp(tmp_path: Path, backend: str, pooling: str) -> None:
    path = tmp_path / "embedding.gguf"
    source = open_gguf(DATA / "llama2.f32.gguf")
    tensors = {
        name: (dequantize(info.data, info.type, info.shape), QuantType.F32)
        for name, info in source.tensors.items()
    }
    write_gguf(path, {**source.metadata, "llama.pooling_type": NUMBERS[pooling]}, tensors)
    with np.load(DATA / "embeddings.npz") as expected, chaski.load(path, backend=backend, threads=1) as model:
        vectors = model.embed([expected["ids"].tolist()], normalize=False)
        np.testing.assert_allclose(vectors[0], expected[pooling], rtol=0, atol=2e-5)


@pytest.fixture
def path(tmp_path: Path, pooling: str) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf", llama__pooling_type=NUMBERS[pooling])


def test_a_vector_depends_on_its_text_only(path: Path) -> None:
    """The bits are the same alone, with others, in chunks or whole, and after other texts."""
    with chaski.load(path, threads=1) as model:
        alone = np.concatenate([model.embed([text]) for text in TEXTS])
        np.testing.assert_array_equal(model.embed(TEXTS), alone)
    with chaski.load(path, threads=2, parallel=3, num_batch=7) as model:
        np.testing.assert_array_equal(model.embed(TEXTS), alone)
        np.testing.assert_array_equal(model.embed(TEXTS[::-1])[::-1], alone)
    assert len(np.unique(alone, axis=0)) == (1 if NUMBERS["first"] == model.pooling else len(TEXTS))


def test_texts_are_computed_together(path: Path) -> None:
    with chaski.load(path, parallel=3) as model:
        with patch.object(Program, "prepare", autospec=True, side_effect=Program.prepare) as prepare:
            model.embed(TEXTS)
        batches = [call.args[1] for call in prepare.call_args_list]
        assert [set(batch.sequences.tolist()) for batch in batches] == [{0, 1, 2}]


def test_vectors_have_length_one_unless_told_otherwise(path: Path) -> None:
    with chaski.load(path) as model:
        assert np.linalg.norm(model.embed(TEXTS), axis=1) == pytest.approx(1)
        raw = model.embed(TEXTS[0], normalize=False)
        assert raw.shape == (1, 64)
        np.testing.assert_allclose(raw / np.linalg.norm(raw), model.embed(TEXTS[0]), rtol=1e-6)


def test_a_text_that_is_too_long(path: Path) -> None:
    with chaski.load(path, context=16) as model:
        with pytest.raises(OptionError, match="has 61 tokens, but the context holds 16;"):
            model.embed(TEXTS)
        np.testing.assert_array_equal(
            model.embed([TEXTS[2]], truncate=True), model.embed([model.tokenize(TEXTS[2])[:16]])
        )


def test_an_embedding_model_makes_no_text(path: Path) -> None:
    with chaski.load(path) as model:
        for call in (model.generate, model.logits, model.stream):
            with pytest.raises(UnsupportedError, match="makes embeddings, not text"):
                call([1, 2])


def test_a_text_model_makes_no_embeddings(tiny_llama: Path) -> None:
    with (
        chaski.load(tiny_llama) as model,
        pytest.raises(UnsupportedError, match="does not support embeddings"),
    ):
        model.embed(TEXTS)


def test_kinds_of_pooling_that_are_not_here(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=re.escape("llama.pooling_type = 9 is not supported")):
        chaski.load(write_tiny_llama(tmp_path / "tiny.gguf", llama__pooling_type=9))
    with pytest.raises(UnsupportedError, match=re.escape("(rank) needs the tensor cls.output.weight")):
        chaski.load(write_tiny_llama(tmp_path / "tiny.gguf", llama__pooling_type=4))
