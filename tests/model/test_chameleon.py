"""Chameleon never chooses the tokens of pictures, which its vocabulary has."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from tests.families import converted
from tests.rewriting import all_tensors


def test_tokens_of_pictures_have_the_lowest_logits(tmp_path: Path) -> None:
    path, images = converted("chameleon/usual"), [0, 7, 8, 9, 20, 303]
    with open_gguf(path) as file:
        names = file.get("tokenizer.ggml.tokens", list[str])
        named = [f"IMGIMG{token}Z" if token in images else name for token, name in enumerate(names)]
        metadata = {**file.metadata, "tokenizer.ggml.tokens": named}
        write_gguf(tmp_path / "pictures.gguf", metadata, dict(all_tensors(file)))
    ids = [5, 40, 100]
    with chaski.load(path) as model, chaski.load(tmp_path / "pictures.gguf") as other:
        wanted, found = np.asarray(model.logits(ids)), np.asarray(other.logits(ids))
    assert found[:, images].max() < -1e29
    text = np.delete(np.arange(found.shape[1]), images)
    np.testing.assert_array_equal(found[:, text], wanted[:, text])
