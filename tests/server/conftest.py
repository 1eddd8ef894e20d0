"""A server with the bundled model and its store, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski.address import Address
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.bundled import bundled_model
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.running import Running, running

SOMEWHERE = Address("127.0.0.1", 0)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store in Ollama's layout with the model `helper`: the bundled one with its own settings."""
    folder = tmp_path_factory.mktemp("server-models")
    guide = bundled_model(ModelName.parse("guide"))
    assert guide is not None
    recipe = Recipe(sources=[guide], parameters={"temperature": 0.0, "num_predict": 24}, licenses=["free"])
    for _ in create(Store(folder), ModelName.parse("helper"), recipe):
        pass
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Running]:
    """Run the server with one core for each model, and eight requests at a time."""
    patch = pytest.MonkeyPatch()
    patch.setenv("CHASKI_THREADS", "1")
    with running(Settings(address=SOMEWHERE, parallel=8), models) as server:
        yield server
    patch.undo()
