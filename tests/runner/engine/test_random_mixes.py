"""A few random mixes of every model; `python -m tests.random_mixes` runs any number."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.random_mixes import MODELS, Mix, Model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixes")


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_random_requests_are_told_what_they_are_alone(model: Model, folder: Path) -> None:
    mix = Mix(model, 5, 16, folder)
    assert mix.run() == [], mix
    assert mix.forgotten


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1012))
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_many_random_requests_are_told_what_they_are_alone(model: Model, seed: int, folder: Path) -> None:
    mix = Mix(model, seed, 24, folder)
    assert mix.run() == [], mix
