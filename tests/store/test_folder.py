"""Folders as models: the files of one model are found, or the error names the candidates."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.store.folder import folder_model
from chaski.store.model import find_model
from chaski.store.store import Store
from tests.rewriting import write_split
from tests.store.creating import MINE, made, store, weights
from tests.store.test_adapter_files import adapter_of

__all__ = ["store", "weights"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "folder"
    found.mkdir()
    return found


def projector(path: Path) -> Path:
    write_gguf(path, {"general.architecture": "clip"}, {"v.bias": (np.ones(4, np.float32), QuantType.F32)})
    return path


@pytest.mark.parametrize("is_split", [False, True])
def test_a_folder_is_the_model_in_it(store: Store, weights: Path, folder: Path, is_split: bool) -> None:
    first = write_split(weights, folder)[0] if is_split else weights.rename(folder / "model.gguf")
    seeing = projector(folder / "mmproj.gguf")
    adapter_of(first, folder / "adapter.gguf")
    (folder / "README.md").write_text("read me")
    found = find_model(folder, store)
    assert (found.path, found.projectors) == (first, (seeing,))
    assert find_model(f"{folder}/", store) == found
    with chaski.load(folder, context=32) as model:
        assert model.generate("the", num_predict=2, temperature=0).text
    entry = store.entry(made(store, f"FROM {folder}", folder).name or MINE)
    assert [layer.kind for layer in entry.manifest.layers] == ["model", "projector"]


def test_several_models_or_projectors_are_listed(weights: Path, folder: Path) -> None:
    (folder / "a.gguf").write_bytes(weights.read_bytes())
    for name in ("c.gguf", "d.gguf"):
        projector(folder / name)
    with pytest.raises(chaski.ModelNotFoundError, match=r"with 2 projectors; name the file: c.gguf, d.gguf"):
        folder_model(folder)
    (folder / "b.gguf").write_bytes(b"damaged")
    with pytest.raises(chaski.ModelNotFoundError, match=r"with 2 models; name the file: a.gguf, b.gguf"):
        folder_model(folder)


def test_a_damaged_file_is_the_one_that_opening_blames(folder: Path) -> None:
    (folder / "b.gguf").write_bytes(b"damaged")
    with pytest.raises(chaski.GGUFError, match=r"b.gguf"):
        chaski.load(folder)


def test_a_folder_without_a_model(folder: Path) -> None:
    os.mkfifo(folder / "fifo.gguf")
    with pytest.raises(chaski.ModelNotFoundError, match=r"without a GGUF file of a model$"):
        folder_model(folder)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    with pytest.raises(chaski.UnsupportedError, match=rf"`chaski convert {folder} NAME.gguf`"):
        folder_model(folder)
