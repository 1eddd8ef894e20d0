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
    header   precedes the content itself
    is_open  whether the prompt has already begun a thought
    repeats  whether another thought may follow
    """

    opening: str
    closing: str
    header: str = ""
    is_open: bool = False
    repeats: bool = False


Piece: TypeAlias = Content | Thought | FoundCall


class Parser(Protocol):
    """A parser of an answer; the text may arrive in portions of any length."""

    @property
    def lead(self) -> Lead | None:
        """The text that may precede the content, before any text is read; None if there may be none."""

    def feed(self, text: str) -> list[Piece]:
        """Read text and return the pieces that are certain now; hold back a possible start of a tag."""

    def flush(self) -> list[Piece]:
        """Return the rest after the last text. The parser cannot be used afterwards."""
