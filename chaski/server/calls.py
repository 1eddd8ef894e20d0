"""Calls that a request demands: the answer follows a schema of calls, so there is one, whatever the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from chaski.errors import OptionError
from chaski.text.parsers import Content, Parser, Piece, ToolCall

__all__ = ["DemandedCall", "chosen_tools", "schema_of_call"]

Tools = Sequence[Mapping[str, Any]]


def chosen_tools(tools: Tools, choice: str) -> Tools:
    """Which tools an answer may call. Raises OptionError for a choice that there is not."""
    if choice in ("auto", "none"):
        return tools if choice == "auto" else ()
    found = [tool for tool in tools if choice in ("required", _function(tool).get("name"))]
    if not found:
        raise OptionError(f"tool_choice asks for {choice!r:.80}, but the request has no such tool")
    return found


def schema_of_call(tools: Tools) -> Mapping[str, Any]:
    """The JSON schema of a call of one of the tools."""
    return {"anyOf": [_schema(_function(tool)) for tool in tools]}


class DemandedCall:
    """A parser for an answer that is one call as JSON. Behind thinking, if another parser finds any."""

    def __init__(self, before: Parser) -> None:
        self._before = before
        self._text = ""

    def feed(self, text: str) -> list[Piece]:
        """Thinking only."""
        return self._sorted(self._before.feed(text))

    def flush(self) -> list[Piece]:
        """The call; where it was cut off, the text that there is."""
        pieces = self._sorted(self._before.flush())
        try:
            call = json.loads(self._text)
            return [*pieces, ToolCall(call["name"], call["arguments"])]
        except (ValueError, KeyError, TypeError):
            return [*pieces, Content(self._text)]

    def _sorted(self, pieces: Sequence[Piece]) -> list[Piece]:
        self._text += "".join(piece.text for piece in pieces if isinstance(piece, Content))
        return [piece for piece in pieces if not isinstance(piece, Content)]


def _schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = function.get("parameters") or {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": function.get("name")}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else {}
