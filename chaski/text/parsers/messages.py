"""Formats in which an answer is a sequence of messages, each with a header that states its purpose.

`<|start|>assistant HEADER<|message|>TEXT<|end|>`, and so on. The prompt ends inside the first header.
Each format defines what headers mean and how calls are written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from msgspec.structs import replace

from chaski.text.parsers.pieces import Content, Lead, Piece, Thought
from chaski.text.parsers.stream import held_back

_START = "<|start|>"
_MESSAGE = "<|message|>"
_ROLE = "assistant"


class MessageParser(ABC):
    """Reads alternating headers and messages. It begins at the end of the prompt, inside a header."""

    def __init__(self, ends: tuple[str, ...], headers: tuple[str, str], prompt: str = "") -> None:
        """`prompt` is the text before the answer; the answer continues its last header or message.

        `ends` are the marks that end messages; the first one ends thoughts. `headers` are the headers of
        thoughts and of messages to the user.
        """
        thought, said = (header + _MESSAGE for header in headers)
        self._usual_lead = Lead(thought, ends[0] + _START + _ROLE, said, repeats=True)
        self._ends = (*ends, _START)
        self._begun, in_message, _ = prompt.rpartition(_START)[2].partition(_MESSAGE)
        self._header = self._begun if in_message else None  # None while a header is read
        self._buffer = ""

    @property
    def lead(self) -> Lead | None:
        """The text that may precede the message to the user: thoughts, and that message's header."""
        if self._header is None:
            # A header that has begun with more than a role may continue in any way.
            return self._usual_lead if self._begun.strip() == _ROLE else None
        return replace(self._usual_lead, is_open=True) if self.is_thinking(self._header) else None

    def feed(self, text: str) -> list[Piece]:
        """Read text and return the pieces that are certain now."""
        self._buffer += text
        return list(self._pieces())

    def flush(self) -> list[Piece]:
        """Return the rest. A header without a message becomes content."""
        pieces = list(self._pieces(final=True))
        rest, self._buffer = self._buffer, ""
        if self._header is None:
            return [*pieces, Content(rest)] if rest.strip() else pieces
        return [*pieces, *self._shown(self._header, rest)]

    @abstractmethod
    def is_thinking(self, header: str) -> bool:
        """Return whether the message is a thought, not text for the user."""

    @abstractmethod
    def is_call(self, header: str) -> bool:
        """Return whether the message is a call, which is only returned when it is complete."""

    @abstractmethod
    def call(self, header: str, text: str) -> list[Piece]:
        """Return the calls of the message, or its text as content if it cannot be read."""

    @abstractmethod
    def end_of_call(self, text: str, final: bool) -> int | None:
        """Return the index after which end marks count in the text of a call; None if it is not complete."""

    def _pieces(self, final: bool = False) -> Iterator[Piece]:
        while True:
            if self._header is None:
                header, found, rest = self._buffer.partition(_MESSAGE)
                if not found:
                    return
                self._header, self._buffer = self._begun + header, rest
                self._begun = ""
            found_end = self._end(self._header, final)
            if found_end is None:
                yield from self._streamed(self._header)
                return
            position, end = found_end
            text, self._buffer = self._buffer[:position], self._buffer[position + len(end) :]
            yield from self._shown(self._header, text)
            self._header = None

    def _end(self, header: str, final: bool) -> tuple[int, str] | None:
        """Return the index of the message's end and the mark that ends it; None if it does not end yet."""
        begin = self.end_of_call(self._buffer, final) if self.is_call(header) else 0
        if begin is None:
            return None
        positions = [(self._buffer.find(end, begin), end) for end in self._ends]
        return min(((position, end) for position, end in positions if position >= 0), default=None)

    def _streamed(self, header: str) -> Iterator[Piece]:
        """Yield the text of the message that is certain now."""
        if self.is_call(header):
            return
        kept = held_back(self._buffer, self._ends)
        text = self._buffer[: len(self._buffer) - kept]
        self._buffer = self._buffer[len(text) :]
        yield from self._shown(header, text)

    def _shown(self, header: str, text: str) -> Iterator[Piece]:
        if self.is_call(header):
            yield from self.call(header, text)
        elif text:
            yield Thought(text) if self.is_thinking(header) else Content(text)
