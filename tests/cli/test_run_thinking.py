"""Thoughts of models in `chaski run`: models of a server, and models that it loads itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaski.chat.requests import Generate
from chaski.cli.main import chaski_command
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import running
from tests.server.thinker import TEMPLATE
from tests.speaking_llama import write_speaking_llama
from tests.tiny_llama import write_tiny_llama

SHOWN = "Thinking...\nhm, well\n...done thinking.\n\nSo.\n"


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Return the output of a model on a running server that thinks before it answers."""
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


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Chat with typed lines; return the output without echo and prompts."""

    def talk(model: str, *lines: str, options: Sequence[str] = ()) -> Result:
        typed = iter(lines)

        def read(prompt: str) -> str:
            try:
                return next(typed)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr("chaski.cli.run._whole_prompt", lambda words: None)
        return run(model, *options)

    return talk


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


def test_it_is_chosen_in_a_chat(script: Script, chat: Callable[..., Result]) -> None:
    said = chat("talker", "/set nothink", "why?", "/set think", "why?", "/set think hard")
    prompts = [bytes(call.prompt).decode() for call in script.asked if isinstance(call, Generate)]
    assert [prompt.endswith("<think></think>") for prompt in prompts] == [True, False]
    assert "it must be one of true, false, low" in said.stderr


# ---- without a server ----


@pytest.fixture
def speaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a model that thinks before it answers, without a server."""
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    monkeypatch.setenv("OLLAMA_NOHISTORY", "1")
    pieces = ["<think>", "hm, ", "well", "</think>", "So."]
    return str(write_speaking_llama(tmp_path / "speaker.gguf", {"why?": pieces, "again?": pieces[3:]}))


def test_thoughts_stand_apart_here_too(speaker: str) -> None:
    assert run(speaker, "why?").output == SHOWN
    assert run(speaker, "--think=low", "why?").output == SHOWN
    assert run(speaker, "--hidethinking", "why?").output == "So.\n"
    assert run(speaker, "--think=false", "why?").output == "So.\n"
    assert run(speaker, "--raw", "why?").output == "<think>hm, well</think>So.\n"


SHOWING = (
    "{% for m in messages %}{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}"
    "{% endfor %}"
)


def test_a_budget_ends_thoughts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chat: Callable[..., Result]
) -> None:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    monkeypatch.setenv("OLLAMA_NOHISTORY", "1")
    sayings = {"why?": ["<think>", "hm, ", "well, ", "yes", "</think>", "So."]}
    model = str(write_speaking_llama(tmp_path / "thinker.gguf", sayings, SHOWING))
    short = SHOWN.replace(", well", ",")
    found = run(model, "--reasoning-budget", "2", "--verbose", "why?")
    assert found.stdout == short
    assert "thinking count:       2 token(s)" in found.stderr
    said = chat(model, "/set parameter reasoning_budget 2", "why?")
    assert said.stdout == f"Set parameter 'reasoning_budget' to '2'\n{short}\n"
    wrong = run(model, "--reasoning-budget", "-2", "why?")
    assert wrong.exit_code == 1
    assert "reasoning_budget is -2; it must be an integer of at least -1" in wrong.stderr


def test_it_is_chosen_in_a_chat_here_too(speaker: str, chat: Callable[..., Result]) -> None:
    said = chat(speaker, "why?", "/set nothink", "why?", "/set think", "/clear", "why?").stdout
    off, on = "The model answers without thinking.\n", "The model thinks before it answers.\n"
    assert said == "".join((SHOWN, off, "So.\n", on, "Cleared the conversation.\n", SHOWN, "\n"))


def test_old_turns_of_one_that_thinks_are_left_out(speaker: str, chat: Callable[..., Result]) -> None:
    long = "x " * 200
    said = chat(speaker, long, long, long, "why?", options=("--context", "500"))
    assert said.stdout.endswith(SHOWN + "\n")
    assert re.search(r"The context is full: \d+ tokens were left out", said.stderr)


def test_one_that_cannot_think(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    result = run("guide", "--think", "hello")
    assert result.exit_code == 1
    assert '"guide" does not support thinking' in result.stderr
    assert run("guide", "--think=false", "--num-predict", "1", "hello").exit_code == 0
