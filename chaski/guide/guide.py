"""The guide of a model's file: it finds the answer to a question, and holds the model to that answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chaski.chat.constraints import is_constrained
from chaski.env import Environment
from chaski.errors import GGUFError
from chaski.formats.gguf import GGUFFile, open_inside
from chaski.guide.answers import ANSWERS, AnswerTexts, spread

__all__ = ["Guide", "guide_of"]


class Encoder(Protocol):
    """A model that makes vectors of texts."""

    def embed(self, texts: Sequence[str], *, truncate: bool) -> npt.NDArray[Any]:
        """Return one vector of length 1 for each text -> (texts, length of vectors) float32."""

    def close(self) -> None:
        """Release it."""


class Guide:
    """The answers of a model's file, and their encoder, which is loaded when the first question arrives.

    `open_encoder` loads the encoder. Safe to use from several threads.
    """

    def __init__(self, file: GGUFFile, open_encoder: Callable[[GGUFFile], Encoder]) -> None:
        self._path = file.path
        self._open_encoder = open_encoder
        self._lock = Lock()
        self._encoder: Encoder | None = None

    def steered(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options that hold the model to the answer to the last message, if a user wrote it.

        Options that already constrain the answer are not changed. Raises what `find` raises.
        """
        last = messages[-1] if messages else {}
        question = _text(last.get("content"))
        if last.get("role") != "user" or not question or is_constrained(options):
            return dict(options)
        return {**options, "choice": [self.find(question)]}

    def find(self, question: str) -> str:
        """Return the answer to a question. An unclear question gets an answer too.

        Raises GGUFError for a damaged file, and the errors of loading the encoder.
        """
        text = spread(question, self._texts.words)
        with self._lock:
            if self._encoder is None:
                self._encoder = self._open_encoder(open_inside(self._path, ANSWERS))
            (vector,) = self._encoder.embed([text], truncate=True)
        if len(vector) != self._texts.rows.shape[1]:
            raise GGUFError(
                f"{self._path}: the encoder returns vectors of {len(vector)} elements, but the answers need "
                "another length; get a correct copy of the file"
            )
        return self._texts.chosen(self._texts.probabilities(np.asarray(vector, np.float32)))

    def close(self) -> None:
        """Release the encoder."""
        if self._encoder is not None:
            self._encoder.close()

    @cached_property
    def _texts(self) -> AnswerTexts:
        with open_inside(self._path, ANSWERS) as file:
            return AnswerTexts.of(file)


def guide_of(file: GGUFFile, open_encoder: Callable[[GGUFFile], Encoder]) -> Guide | None:
    """Return the guide of a model's file, or None if the file has no guide or the environment turns guides
    off.
    """
    if ANSWERS not in file.metadata or not Environment.read().answers:
        return None
    return Guide(file, open_encoder)


def _text(content: object) -> str:
    """Return the text of a message, or of its parts."""
    if isinstance(content, str):
        return content.strip()
    parts = content if isinstance(content, list | tuple) else ()
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return " ".join(text.strip() for text in texts if isinstance(text, str))
