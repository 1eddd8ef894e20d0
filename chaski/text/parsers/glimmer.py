"""Glimmer's format: messages whose header names their recipient.

` to=self<|message|>…<|eom|><|start|>assistant to=user<|message|>…<|eot|>`. A message to `self` is a
thought; one to a tool is a call: `<atem:function_calls><atem:invoke name="f"><atem:parameter name="p">…`.
Values may hold any text, end marks too. A tool may be called through the namespace that its name
begins with, `read.read` for `read`. Source: what the model writes in the tests of Ollama's parser.
"""

from __future__ import annotations

import re

from chaski.text.parsers.messages import MessageParser
from chaski.text.parsers.pieces import Content, FoundCall, Piece
from chaski.text.parsers.schema import Tools, function_of, properties_of, typed

_ENDS = ("<|eom|>", "<|eot|>")
_HEADERS = (" to=self", " to=user")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_OPENING, _CLOSING = "<atem:function_calls>", "</atem:function_calls>"
_INVOKE = re.compile(r'<atem:invoke name="([^"]*)">(.*?)</atem:invoke>', re.DOTALL)
_PARAMETER = re.compile(r'<atem:parameter name="([^"]*)">(.*?)</atem:parameter>', re.DOTALL)


class GlimmerParser(MessageParser):
    """Parses messages by their recipients."""

    def __init__(self, tools: Tools, prompt: str = "") -> None:
        super().__init__(_ENDS, _HEADERS, prompt)
        self._tools = tools
        self._names = {str(function_of(tool).get("name")) for tool in tools}

    def is_thinking(self, header: str) -> bool:
        return _recipient(header) == "self"

    def is_call(self, header: str) -> bool:
        return bool(self._names) and _recipient(header) not in ("user", "self", "")

    def end_of_call(self, text: str) -> int | None:
        # A message that is not a call ends like any other.
        begun = text.lstrip()[: len(_OPENING)]
        if not begun.startswith(_OPENING):
            return None if begun and _OPENING.startswith(begun) else 0
        found = text.find(_CLOSING)
        return None if found < 0 else found + len(_CLOSING)

    def call(self, header: str, text: str) -> list[Piece]:
        calls: list[Piece] = [self._made(name, body) for name, body in _INVOKE.findall(text)]
        return calls or [Content(text)]

    def _made(self, name: str, body: str) -> FoundCall:
        found = self._resolved(name.removesuffix("<|message|>"))
        properties = properties_of(found, self._tools)
        arguments = {key: typed(value, properties.get(key)) for key, value in _PARAMETER.findall(body)}
        return FoundCall(found, arguments)

    def _resolved(self, name: str) -> str:
        namespace, _, rest = name.partition(".")
        is_own = name not in self._names and rest in self._names and rest.partition(".")[0] == namespace
        return rest if is_own else name


def _recipient(header: str) -> str:
    found = _RECIPIENT.search(header)
    return "" if found is None else found[1]
