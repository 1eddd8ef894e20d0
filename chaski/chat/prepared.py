"""Prepared answers: texts that a model's file brings, one of which is the answer to a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from chaski.chat.constraints import is_constrained

__all__ = ["PreparedAnswers", "held_to_answer"]


class PreparedAnswers(Protocol):
    """Finds the answer to a question."""

    def find(self, question: str) -> str:
        """Return the answer; an unclear question gets one, too."""


def held_to_answer(
    answers: PreparedAnswers, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return options that hold the model to the answer for the last message, where a user wrote it.

    Options that constrain the answer already stay as they are.
    """
    last = messages[-1] if messages else {}
    question = _text(last.get("content"))
    if last.get("role") != "user" or not question or is_constrained(options):
        return dict(options)
    return {**options, "choice": [answers.find(question)]}


def _text(content: object) -> str:
    """The text of a message, or of its parts."""
    if isinstance(content, str):
        return content.strip()
    parts = content if isinstance(content, list | tuple) else ()
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return " ".join(text.strip() for text in texts if isinstance(text, str))
