"""Chats with scripted lines."""

from __future__ import annotations

from pathlib import Path

import pytest

import chaski
from chaski.chat.options import KNOWN_OPTIONS
from chaski.cli.chat import chat
from chaski.cli.session import Session


def talk(session: Session, monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """Type the lines, then end the input. An exception among them stands for Ctrl-C or Ctrl-D."""
    typed = iter([*lines, EOFError])

    def read(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)
    chat(session)


def said(session: Session) -> list[str]:
    return [message["content"] for message in session.history if message["role"] == "user"]


def options() -> set[str]:
    """Return the answer options that users set by hand, and the loading options that a chat can change."""
    unknown = {"num_batch", "use_mmap", "engine", "logit_bias", "receipt"}
    # A chat streams answers, and a beam search has no text before its end.
    return set(KNOWN_OPTIONS) - unknown - {"num_beams", "length_penalty", "early_stopping"}


def opened(tiny_llama: Path) -> Session:
    options = {"temperature": 0, "num_predict": 6}

    def load(name: str, num_ctx: int | None = None, num_thread: int | None = None) -> chaski.LLM:
        return chaski.load(name, context=num_ctx, threads=num_thread)

    return Session(load(str(tiny_llama)), options, name=str(tiny_llama), open=load)
