"""Lets commands in tests compute on one core: models are tiny, and several test runs may share a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import chaski
from chaski.cli.session import Session


@pytest.fixture(autouse=True)
def one_core(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "1")


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Iterator[chaski.LLM]:
    with chaski.load(tiny_llama) as loaded:
        yield loaded


@pytest.fixture
def session(model: chaski.LLM) -> Session:
    return Session(model, {"temperature": 0, "num_predict": 6})


@pytest.fixture
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
