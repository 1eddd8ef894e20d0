"""gpt-oss's format, harmony: messages with a header that names channel and recipient.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`. The analysis
channel is thinking; a message to `functions.name` is a call with JSON arguments; all else is content.
A tool's name may have been written as the name of a type, with underscores for what those cannot have.
Source: OpenAI's description of the harmony response format.
"""

from __future__ import annotations

import re

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
        names = [str(function_of(tool).get("name")) for tool in tools]
        self._names = {_type_name(name): name for name in names} | {name: name for name in names}

    def is_thinking(self, header: str) -> bool:
        channel = _CHANNEL.search(header)
        return channel is not None and channel[1] == "analysis"

    def is_call(self, header: str) -> bool:
        return bool(self._names) and _recipient(header) is not None

    def call(self, header: str, text: str) -> list[Piece]:
        arguments = read_arguments(text)
        name = _recipient(header)
        if arguments is None or name is None:
            return [Content(text)]
        return [FoundCall(self._names.get(name, name), arguments)]


def _type_name(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _recipient(header: str) -> str | None:
    """Return the tool that a message is sent to; None if it is not sent to a tool."""
    found = _RECIPIENT.search(header)
    if found is None or found[1] in _PEOPLE:
        return None
    return found[1].removeprefix("functions.")
