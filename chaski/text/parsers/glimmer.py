"""Glimmer's format: messages whose header names their recipient.

` to=self<|message|>…<|eom|><|start|>assistant to=user<|message|>…<|eot|>`. A message to `self` is a
thought; one to a tool is a call: `<atem:function_calls><atem:invoke name="f"><atem:parameter name="p">…`.
Values may contain any text, including end marks. A call may prefix the tool's name with the namespace that
the name begins with: `read.read` for `read`. Source: the model's output in the tests of Ollama's parser.
"""

from __future__ import annotations

import re

from chaski.text.parsers.blocks import BlockReader
from chaski.text.parsers.messages import MessageParser
from chaski.text.parsers.pieces import Content, FoundCall, Piece
from chaski.text.parsers.schema import Tools, function_of, names_of
from chaski.text.parsers.tags import Opening, TagBlock

_ENDS = ("<|eom|>", "<|eot|>")
_HEADERS = (" to=self", " to=user")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CALLS = TagBlock(
    Opening('<atem:invoke name="', ">", quote='"'),
    "</atem:invoke>",
    Opening('<atem:parameter name="', ">", quote='"'),
    "</atem:parameter>",
    ("<atem:function_calls>", "</atem:function_calls>"),
    ends=_ENDS,
)


class GlimmerParser(MessageParser):
    """Parses messages by their recipients."""

    def __init__(self, tools: Tools, prompt: str = "") -> None:
        super().__init__(_ENDS, _HEADERS, prompt)
        self._aliases = {alias: name for name in names_of(tools) for alias in (name, _with_namespace(name))}
        self._tools = [
            {**tool, "function": {**function_of(tool), "name": alias}}
            for tool in tools
            for alias, name in self._aliases.items()
            if function_of(tool).get("name") == name
        ]
        self._reader: BlockReader | None = None

    def is_thinking(self, header: str) -> bool:
        return _recipient(header) == "self"

    def is_call(self, header: str) -> bool:
        return bool(self._tools) and _recipient(header) not in ("user", "self", "")

    def end_of_call(self, text: str, final: bool) -> int | None:
        # A message that is not a call ends like any other.
        calls = text.lstrip()
        if not calls.startswith(_CALLS.opening):
            return None if calls and not final and _CALLS.opening.startswith(calls) else 0
        self._reader = self._reader or _CALLS.begin(self._tools)
        found = self._reader.find(calls, final)
        if found is None:
            return None
        return 0 if found.calls is None else len(text) - len(calls) + found.end

    def call(self, header: str, text: str) -> list[Piece]:
        self._reader = None
        found = _CALLS.begin(self._tools).find(text.strip(), True)
        if found is None or not found.calls:
            return [Content(text)]
        return [FoundCall(self._named(call.name), call.arguments) for call in found.calls]

    def _named(self, name: str) -> str:
        return self._aliases.get(name, name).removesuffix("<|message|>")


def _with_namespace(name: str) -> str:
    return f"{name.partition('.')[0]}.{name}"


def _recipient(header: str) -> str:
    found = _RECIPIENT.search(header)
    return "" if found is None else found[1]
