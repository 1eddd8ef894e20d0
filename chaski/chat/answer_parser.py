"""Parsing of an answer while it is made: pieces of text become events of text, thinking and calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from chaski.chat.events import Done, Event, Text, Thinking, ToolCall
from chaski.sample import Sampled
from chaski.text.parsers import Content, FoundCall, Parser, Piece, Thought

__all__ = ["AnswerParser"]


class AnswerParser:
    """Reads the events of one answer, whose text has tags of thoughts and of calls.

    Tokens go with the first event after them that has a text; tokens with log-probabilities do not wait.
    """

    def __init__(self, parser: Parser, parallel_calls: bool = True) -> None:
        """`parallel_calls`: whether calls after the first one count."""
        self._parser = parser
        self._parallel_calls = parallel_calls
        self._token_ids: tuple[int, ...] = ()
        self._called = False
        self._thinking_tokens = 0
        self._first_tokens = 0  # before anything but thinking
        self._is_first = True

    def begin(self, text: str) -> Sequence[Event]:
        """Return the events of a text that the answer begins with, and that is not sampled."""
        pieces = self._chosen(self._parser.feed(text))
        self._count(pieces, 0)
        return list(self._events(pieces, ()))

    def read(self, event: Event) -> Iterable[Event]:
        """Return the events that an event of the engine becomes."""
        if isinstance(event, Text):
            return self._read_text(event)
        return self._end(event) if isinstance(event, Done) else (event,)

    def _read_text(self, event: Text) -> Iterable[Event]:
        pieces = self._chosen(self._parser.feed(event.text))
        self._count(pieces, len(event.token_ids))
        match pieces:
            case [Content(text)] if text == event.text and not self._token_ids:
                return (event,)
        self._token_ids += event.token_ids
        return list(self._events(pieces, event.logprobs))

    def _end(self, done: Done) -> Iterator[Event]:
        pieces = self._chosen(self._parser.flush())
        self._count(pieces, 0)
        yield from self._events(pieces, ())
        if self._token_ids:
            yield Text("", self._token_ids)
        yield replace(done, thinking_tokens=self._thinking_tokens)

    def _events(self, pieces: Sequence[Piece], logprobs: tuple[Sampled, ...]) -> Iterator[Event]:
        """Yield the pieces as events. The first one carries the tokens."""
        if not pieces and logprobs:
            pieces = (Content(""),)
        for piece in pieces:
            token_ids, self._token_ids = self._token_ids, ()
            match piece:
                case Content(text):
                    yield Text(text, token_ids, logprobs)
                case Thought(text):
                    yield Thinking(text, token_ids, logprobs)
                case FoundCall(name, arguments):
                    yield ToolCall(name, dict(arguments), token_ids, logprobs)
            logprobs = ()

    def _chosen(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return the pieces, without calls after the first one unless `parallel_calls` is set."""
        kept: list[Piece] = []
        for piece in pieces:
            is_call = isinstance(piece, FoundCall)
            if self._parallel_calls or not (is_call and self._called):
                kept.append(piece)
            self._called = self._called or is_call
        return kept

    def _count(self, pieces: Sequence[Piece], num_tokens: int) -> None:
        """Count the tokens up to the last thought that only thoughts precede."""
        if self._is_first:
            self._is_first = all(isinstance(piece, Thought) for piece in pieces)
            self._first_tokens += num_tokens if self._is_first else 0
            if any(isinstance(piece, Thought) for piece in pieces):
                self._thinking_tokens = self._first_tokens
