"""What all tests share: a tiny model, and an environment without the user's own settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaski.env import variables
from tests.tiny_llama import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte-level vocabulary and a chat template."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the user's reaches a test, but for the kernels: so that all tests can run on each set."""
    for variable in variables():
        if variable.name != "CHASKI_ISA":
            monkeypatch.delenv(variable.name, raising=False)
