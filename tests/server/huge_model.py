"""A fixture to import: a server whose model has a context too large for any machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

__all__ = ["HUGE", "huge"]

HUGE = 1 << 28


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("huge")
    file = write_tiny_llama(folder / "huge.gguf", llama__context_length=HUGE)
    for _ in create(Store(folder), ModelName.parse("huge"), Recipe(sources=[file])):
        pass
    with running(Settings(address=SOMEWHERE, parallel=4), folder, Script().open) as server:
        yield server
