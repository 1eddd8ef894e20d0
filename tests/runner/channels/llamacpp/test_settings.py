"""The context of the engine llama.cpp, which takes all of its memory at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaski.chat.defaults import Defaults
from chaski.errors import OptionError
from chaski.formats.gguf import open_gguf
from chaski.runner.channels.llamacpp.settings import LlamaSettings
from tests.tiny_llama import write_tiny_llama


def settings(path: Path, loading: dict[str, int] | None = None, **options: Any) -> LlamaSettings:
    with open_gguf(path) as file:
        return LlamaSettings.of(file, Defaults(loading=loading or {}), options)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("long") / "long.gguf", llama__context_length=100_000)


def test_a_context_starts_short_and_grows_with_requests(long: Path) -> None:
    assert (settings(long).context, settings(long).longest) == (4096, 100_000)
    assert settings(long, needed_context=4097).context == 8194
    assert settings(long, needed_context=90_000).context == 100_000


def test_a_context_that_is_set_stays(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_model = settings(long, {"num_ctx": 64}, needed_context=9000)
    assert (of_model.context, of_model.context_reason) == (64, "num_ctx of the model")
    assert settings(long, {"num_ctx": 0}).context == 4096
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "128")
    assert (settings(long).context, settings(long).context_reason) == (128, "OLLAMA_CONTEXT_LENGTH")
    asked = settings(long, context=200)
    assert (asked.context, asked.context_reason) == (200, "as asked for")


def test_sequences(long: Path) -> None:
    assert [settings(long, **each).parallel for each in ({}, {"most_parallel": 4}, {"parallel": 2})] == [
        1,
        4,
        2,
    ]
    with pytest.raises(OptionError, match="parallel = 0"):
        settings(long, parallel=0)
