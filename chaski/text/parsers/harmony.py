"""gpt-oss's format, harmony: messages with a header that says channel and recipient.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`. The analysis
channel is thinking; a message to `functions.name` is a call with JSON arguments; all else is content.
Source: OpenAI's description of the harmony response format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from chaski.text.parsers.pieces import Content, Piece, Thinking, ToolCall
from chaski.text.parsers.readers import read_arguments
from chaski.text.parsers.stream import held_back

_START = "<|start|>"
_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_PEOPLE = {"all", "assistant", "user"}


class HarmonyParser:
    """Reads headers and messages in turn. It begins where the prompt ends, which is inside of a header."""

    def __init__(self, prompt: str = "") -> None:
        """`prompt` is the text before the answer: a header or a message that it has begun goes on."""
        self._begun, in_message, _ = prompt.rpartition(_START)[2].partition(_MESSAGE)
        self._header = self._begun if in_message else None  # None while a header is read
        self._buffer = ""

    def feed(self, text: str) -> list[Piece]:
        """What is certain now."""
        self._buffer += text
        return list(self._pieces())

    def flush(self) -> list[Piece]:
        """The rest. A header whose message never came is shown as it is."""
        rest, self._buffer = self._buffer, ""
        if self._header is None:
            return [Content(rest)] if rest.strip() else []
        return list(self._shown(rest))

    def _pieces(self) -> Iterator[Piece]:
        while True:
            if self._header is None:
                header, found, rest = self._buffer.partition(_MESSAGE)
                if not found:
                    return
                self._header, self._buffer = self._begun + header, rest
                self._begun = ""
            starts = [(self._buffer.find(end), end) for end in _ENDS if end in self._buffer]
            if not starts:
                yield from self._streamed()
                return
            position, end = min(starts)
            text, self._buffer = self._buffer[:position], self._buffer[position + len(end) :]
            yield from self._shown(text)
            self._header = None

    def _streamed(self) -> Iterator[Piece]:
        """What of the message can go out now; a call only goes out whole."""
        if self._recipient() is not None:
            return
        kept = held_back(self._buffer, _ENDS)
        text = self._buffer[: len(self._buffer) - kept]
        self._buffer = self._buffer[len(text) :]
        yield from self._shown(text)

    def _shown(self, text: str) -> Iterator[Piece]:
        recipient = self._recipient()
        if recipient is not None:
            arguments = read_arguments(text)
            yield Content(text) if arguments is None else ToolCall(recipient, arguments)
        elif text:
            channel = _CHANNEL.search(self._header or "")
            yield Thinking(text) if channel and channel[1] == "analysis" else Content(text)

    def _recipient(self) -> str | None:
        """The tool that the message goes to, if it goes to one."""
        found = _RECIPIENT.search(self._header or "")
        if found is None or found[1] in _PEOPLE:
            return None
        return found[1].removeprefix("functions.")
