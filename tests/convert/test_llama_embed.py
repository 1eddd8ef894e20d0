"""Llama for embeddings: the same vectors as EuroBERT, which has another order of elements."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import chaski
from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from tests.families import checkpoint, expected

TEXTS = ["Hello", "the end of a text", "a"]


def converted(folder: Path, architecture: str, pooling: str | None = None) -> Path:
    known = expected("llama_embed/usual")
    checkpoint(folder, {**known["config"], "architectures": [architecture]}, known["tensors"], known["seed"])
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    convert(folder, folder / "model.gguf", "F32")
    return folder / "model.gguf"


def vectors(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    with chaski.load(path, context=64, threads=1) as model:
        return np.asarray(model.embed(TEXTS))


def test_tokens_see_those_after_them(tmp_path: Path) -> None:
    path = converted(tmp_path / "llama", "LlamaBidirectionalModel")
    with open_gguf(path) as file:
        assert file.architecture == "llama-embed"
        assert "output.weight" not in file.tensors
        assert file.get("llama-embed.attention.causal", bool) is False  # llama.cpp asks for it
    found = vectors(path)
    np.testing.assert_allclose(found, vectors(converted(tmp_path / "euro", "EuroBertModel")), atol=1e-5)
    causal = vectors(converted(tmp_path / "causal", "LlamaModel", "mean_tokens"))
    assert np.abs(found - causal).max() > 0.01


def test_the_pooling_of_the_checkpoint_counts(tmp_path: Path) -> None:
    last = vectors(converted(tmp_path / "last", "LlamaBidirectionalModel", "lasttoken"))
    mean = vectors(converted(tmp_path / "mean", "LlamaBidirectionalModel"))
    assert np.abs(last - mean).max() > 0.01
