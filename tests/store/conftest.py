"""Stores and registries for tests; a module may define its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski.store.store import Store
from tests.store.fake_registry import FakeRegistry


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")
