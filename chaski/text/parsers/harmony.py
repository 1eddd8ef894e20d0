"""gpt-oss's format, harmony: messages with a header that names channel and recipient.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`. The analysis
channel is thinking; a message to `functions.name` is a call with JSON arguments; everything else is content.
The model may write a tool's name as a type name, with underscores for characters that types cannot contain.
Source: OpenAI's description of the harmony response format.
"""

from __future__ import annotations

import re

from chaski.text.parsers.json_text import JsonScanner
from chaski.text.parsers.messages import MessageParser
from chaski.text.parsers.pieces import Content, FoundCall, Piece
from chaski.text.parsers.readers import read_arguments
from chaski.text.parsers.schema import Tools, function_of

_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADERS = ("<|channel|>analysis", "<|channel|>final")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_PEOPLE = {"all", "assistant", "user"}


class HarmonyParser(MessageParser):
    """Parses messages by their channels and recipients."""

    def __init__(self, tools: Tools = (), prompt: str = "") -> None:
        super().__init__(_ENDS, _HEADERS, prompt)
        self._tools = tools
        self._scanner, self._scanned = JsonScanner(), 0
        self._arguments_end: int | None = None
        names = [str(function_of(tool).get("name")) for tool in tools]
        self._names = {_type_name(name): name for name in names} | {name: name for name in names}

    def is_thinking(self, header: str) -> bool:
        channel = _CHANNEL.search(header)
        return channel is not None and channel[1] == "analysis"

    def is_call(self, header: str) -> bool:
        return bool(self._names) and _recipient(header) is not None

    def end_of_call(self, text: str, final: bool) -> int | None:
        # Marks in the strings of the arguments belong to them.
        start = len(text) - len(text.lstrip())
        if not text.startswith("{", start):
            return start if start < len(text) or final else None
        if self._arguments_end is None:
            self._arguments_end = self._scanner.feed(text, max(self._scanned, start), len(text))
            self._scanned = len(text)
        return 0 if self._arguments_end is None and final else self._arguments_end

    def call(self, header: str, text: str) -> list[Piece]:
        self._scanner, self._scanned, self._arguments_end = JsonScanner(), 0, None
        name = _recipient(header) or ""
        name = self._names.get(name, name)
        arguments = read_arguments(text, name, self._tools)
        return [Content(text)] if arguments is None or not name else [FoundCall(name, arguments)]


def _type_name(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _recipient(header: str) -> str | None:
    """Return the tool that a message is sent to; None if it is not sent to a tool."""
    found = _RECIPIENT.search(header)
    if found is None or found[1] in _PEOPLE:
        return None
    return found[1].removeprefix("functions.")
