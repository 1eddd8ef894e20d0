"""Makes models from Modelfiles; fixtures to import: a store and a weights file."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.model import StoredModel, find_model
from chaski.store.modelfile import Modelfile
from chaski.store.recipe import recipe_of
from chaski.store.store import Store
from tests.store.stores import assert_valid
from tests.tiny_llama import write_tiny_llama

__all__ = ["MINE", "made", "store", "weights"]

MINE = ModelName.parse("mine")


def made(store: Store, text: str, folder: Path, name: ModelName = MINE) -> StoredModel:
    list(create(store, name, recipe_of(Modelfile.parse(text), folder)))
    assert_valid(store)
    return find_model(name.short, store)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return Store(tmp_path / "models")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf")
