"""What models of a server think, in `chaski run`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from chaski.cli.main import chaski_command
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import running
from tests.server.test_openai_client import TEMPLATE
from tests.tiny_llama import write_tiny_llama

SHOWN = "Thinking...\nhm, well\n...done thinking.\n\nSo.\n"


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """What a model of a running server writes: it thinks before it speaks."""
    folder = tmp_path_factory.mktemp("thinking")
    file = write_tiny_llama(folder / "talker.gguf", chat_template=TEMPLATE)
    for _ in create(Store(folder), ModelName.parse("talker"), Recipe(sources=[file])):
        pass
    script = Script(pieces=("<think>", "hm, ", "well", "</think>", "So."))
    with running(Settings(address=SOMEWHERE), folder, script.open) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        monkeypatch.setenv("OLLAMA_NOHISTORY", "1")
        yield script


def run(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(chaski_command, ["run", *arguments], input=typed)


def last_prompt(script: Script) -> str:
    return bytes(script.asked[-1].prompt).decode()


def test_thoughts_stand_apart(script: Script) -> None:
    assert run("talker", "why?").output == SHOWN
    assert run("talker", "--think", "why?").output == SHOWN
    assert run("talker", "--hidethinking", "why?").output == "So.\n"


def test_whether_it_thinks(script: Script) -> None:
    run("talker", "why?")
    usual = last_prompt(script)
    run("talker", "--think=false", "why?")
    without = last_prompt(script)
    assert without != usual
    result = run("talker", "--think=hard", "why?")
    assert result.exit_code == 1
    assert "it must be one of true, false, low" in result.stderr
    assert run("talker", "--", "--think").output == SHOWN
    assert "--think" in last_prompt(script)


def test_without_a_server_it_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    result = run("guide", "--think", "hello")
    assert result.exit_code == 1
    assert "chosen through a server" in result.stderr
