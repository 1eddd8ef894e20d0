"""Pieces of an answer, each of one kind, and the interface of parsers that find them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from msgspec import Struct


class Content(Struct, frozen=True):
    """Text for the user."""

    text: str


class Thought(Struct, frozen=True):
    """Text that the model wrote for itself."""

    text: str


class FoundCall(Struct, frozen=True):
    """A complete call. `arguments` is a JSON object in the order in which the model wrote it."""

    name: str
    arguments: Mapping[str, Any]


class Lead(Struct, frozen=True):
    """The text before the content of an answer, for callers that hold the answer to a grammar.

    opening  begins a thought
    closing  ends it
    header   stands before the content itself
    is_open  the prompt has begun a thought already
    repeats  another thought may follow
    """

    opening: str
    closing: str
    header: str = ""
    is_open: bool = False
    repeats: bool = False


Piece: TypeAlias = Content | Thought | FoundCall


class Parser(Protocol):
    """A parser of an answer; text may come in portions of any length."""

    @property
    def lead(self) -> Lead | None:
        """The text that may stand before the content, while nothing is read yet; None if nothing may."""

    def feed(self, text: str) -> list[Piece]:
        """Read text and return the pieces that are certain now; a possible start of a tag is kept back."""

    def flush(self) -> list[Piece]:
        """Return the rest, when no more text will come. The parser must not be used afterwards."""
