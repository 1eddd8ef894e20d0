"""A chat without a server loads its model again, once, for a prompt that needs a longer context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import chaski
from chaski.cli.main import chaski_command
from chaski.cli.session import Session
from chaski.errors import ContextLengthError, OutOfMemoryError
from chaski.runner.loading import sizes
from tests.tiny_llama import write_tiny_llama

USUAL, TRAINED = 300, 2048
OPTIONS = {"temperature": 0, "num_predict": 6}
LONG = "x" * 270  # a token each, and a few of the template

Opened = Callable[..., Session]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("growing") / "tiny.gguf"
    return write_tiny_llama(path, llama__context_length=TRAINED)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory allows 300 tokens, unless a prompt needs more."""
    monkeypatch.setattr(sizes, "LEAST_CONTEXT", USUAL)
    monkeypatch.setattr(sizes, "_MOST_CHOSEN", USUAL)


@pytest.fixture
def opened(tiny: Path, little_memory: None) -> Iterator[Opened]:
    """Return a function that opens a session, and fails to reload its model for more than `most` tokens."""
    sessions: list[Session] = []

    def start(most: int = 1 << 20, **more: Any) -> Session:
        def load(name: str, num_ctx: int | None = None, needed_context: int | None = None) -> chaski.LLM:
            if needed_context is not None and needed_context > most:
                raise OutOfMemoryError("no")
            return chaski.load(name, context=num_ctx, needed_context=needed_context, backend="cpu")

        given = {"can_grow": True, "keeps_history": True, **more}
        model = load(str(tiny), given.get("loading", {}).get("num_ctx"))
        sessions.append(Session(model, dict(OPTIONS), name=str(tiny), open=load, **given))
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()


def ends(session: Session) -> list[tuple[int, int]]:
    """Return the tokens of each prompt, and how many of them the prefix cache had."""
    return [(each.done.prompt_tokens, each.done.cached_tokens) for each in session.answers]


def test_a_conversation_that_needs_more_gets_it(
    opened: Opened, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed survives, even where the prefix cache writes no files."""
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "memory")
    session = opened()
    session.answer(LONG)
    assert session.model.context == USUAL
    session.answer("y" * 100)
    assert (prompt := ends(session)[-1][0]) > 370
    assert USUAL < session.model.context < TRAINED
    assert ends(session)[-1][1] >= 256
    assert session.answers[-1].done.dropped_tokens == 0
    with chaski.load(tiny, context=TRAINED, prompt_cache=False) as whole:
        answer = whole.chat(session.history[:-1], **OPTIONS)
    assert (answer.text, answer.prompt_tokens) == (session.history[-1]["content"], prompt)


def test_one_long_question(opened: Opened) -> None:
    session = opened()
    session.answer("x" * 900)
    assert 900 < session.model.context < TRAINED
    raw = opened(is_raw=True)
    raw.answer("x" * 900)
    assert raw.model.context > 900


def test_the_limits_of_the_model_and_of_memory(opened: Opened) -> None:
    session = opened()
    with pytest.raises(ContextLengthError, match=f"the context holds {TRAINED}"):
        session.answer("x" * 3000)
    assert session.model.context == TRAINED
    short = opened(most=400)
    for _ in range(2):
        with pytest.raises(ContextLengthError, match=f"the context holds {USUAL}"):
            short.answer("x" * 500)
    short.answer("x" * 200)
    short.answer("x" * 200)  # leaves the first question out, as ever
    assert short.answers[-1].done.dropped_tokens > 0


@pytest.mark.parametrize("way", ["command", "chat", "environment"])
def test_a_context_that_is_set_stays(opened: Opened, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "environment":
        monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", str(USUAL))
    ways: dict[str, dict[str, Any]] = {
        "command": {"can_grow": False},
        "chat": {"loading": {"num_ctx": USUAL}},
    }
    session = opened(**ways.get(way, {}))
    with pytest.raises(ContextLengthError):
        session.answer("x" * 500)
    assert session.model.context == USUAL


def test_the_command(tiny: Path, little_memory: None) -> None:
    asked = ["run", str(tiny), "x" * 500, "--num-predict", "4"]
    answered = CliRunner().invoke(chaski_command, asked)
    assert answered.exit_code == 0, answered.output
    refused = CliRunner().invoke(chaski_command, [*asked, "--context", "300"])
    assert (refused.exit_code, "the context holds 300" in refused.output) == (1, True)
