"""`chaski cache`: the contents of the prefix cache on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import chaski
from chaski.cli.main import chaski_command
from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.model import find_model
from chaski.store.recipe import Recipe
from chaski.store.store import Store

PROMPT = "over the mountains " * 8


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make a store with blocks of the guide, loaded by path as in the server, and of a file."""
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))


def keep(path: Path | str) -> None:
    with chaski.load(path) as model:
        model.generate(PROMPT, num_predict=2, temperature=0)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(chaski_command, ["cache", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_models_are_listed_by_name_and_emptied(tiny_llama: Path) -> None:
    keep(find_model("guide").path)
    keep(tiny_llama)
    listed = run()
    assert "guide:latest" in listed
    assert str(tiny_llama) in listed
    assert "of at most" in listed
    assert "tiny" not in run("guide")
    assert "removed 0 B" in run("--unused-for", "7d")
    assert "removed" in run("guide", "--empty")
    assert "guide" not in run()
    assert str(tiny_llama) in run()
    run("--empty")
    assert str(tiny_llama) not in run()


def test_states_are_listed_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_llama: Path
) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    monkeypatch.setenv("CHASKI_STATES", str(folder))
    assert "STATE" not in run()
    with chaski.load(tiny_llama) as model:
        saved = model.save_state(folder / "slot one", PROMPT)
    (folder / "0123.1.tmp").write_bytes(b"chaski state 1")  # of a process that is saving
    (folder / "cut").write_bytes((folder / "slot one").read_bytes()[:-1])
    store = Store.default()
    name = ModelName.parse("chat")
    for _ in create(store, name, Recipe(sources=[tiny_llama])):
        pass
    store.make_state_path(store.entry(name).name).write_bytes((folder / "slot one").read_bytes())
    listed = {line.split("    ")[0].strip(): line for line in run().splitlines()}
    assert f"{saved.tokens}" in listed[f"{folder}/slot one"].split()
    assert tiny_llama.name in listed[f"{folder}/slot one"]
    assert "damaged" in listed[f"{folder}/cut"]
    assert not any(".tmp" in line for line in listed)
    assert f"{saved.tokens}" in listed["chat:latest"].split()
    assert "STATE" not in run("another")
    run("--empty")
    assert "chat:latest" in run("tiny")


def test_nothing_is_there_at_first() -> None:
    assert "0 B of at most" in run()


def test_the_folder_is_measured() -> None:
    assert ": writes " in run("--measure")


def test_a_time_that_is_none_is_refused() -> None:
    for time in ("soon", "-5m", "-1"):
        result = CliRunner().invoke(chaski_command, ["cache", "--unused-for", time])
        assert result.exit_code == 1
        assert f"--unused-for = '{time}' must be a time of at least 0" in result.output


def test_show_tells_what_is_kept_of_a_model(tiny_llama: Path) -> None:
    def show(*arguments: str) -> str:
        result = CliRunner().invoke(chaski_command, ["show", str(tiny_llama), *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    assert "Prefix cache" not in show()
    keep(tiny_llama)
    shown = show()
    assert "Prefix cache" in shown
    rows = dict(line.split(None, 1) for line in shown.partition("Prefix cache")[2].splitlines() if line)
    assert rows["blocks"] == "on disk    1"
    assert int(rows["tokens"]) > 8
    assert "B" in rows["size"]
    run("--empty")
    assert "Prefix cache" not in show()
