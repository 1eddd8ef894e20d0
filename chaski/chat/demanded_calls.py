"""Calls that a request demands: the answer follows a JSON schema of calls, whatever the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaski.errors import OptionError
from chaski.sample.schema import named
from chaski.text.parsers import Content, FoundCall, Lead, Parser, Piece
from chaski.text.parsers.json_text import load_enforced_json
from chaski.text.parsers.schema import Tools

__all__ = ["DemandedCall", "chosen_tools", "schema_of_call"]


def chosen_tools(tools: Tools, choice: str) -> Tools:
    """Return the tools that an answer may call. Raises OptionError if `choice` names none of `tools`."""
    if choice in ("auto", "none"):
        return tools if choice == "auto" else ()
    found = [tool for tool in tools if choice in ("required", _function(tool).get("name"))]
    if not found:
        raise OptionError(f"tool_choice asks for {choice!r:.80}, but the request has no such tool")
    return found


def schema_of_call(tools: Tools) -> Mapping[str, Any]:
    """The JSON schema of a call of one of the tools.

    Raises OptionError for a tool whose parameters are not an object.
    """
    return {"anyOf": [_schema(_function(tool), f"urn:tool:{index}") for index, tool in enumerate(tools)]}


class DemandedCall:
    """A parser for an answer that is one call as JSON, after thoughts that another parser finds."""

    def __init__(self, before: Parser) -> None:
        self._before = before
        self._text = ""

    @property
    def lead(self) -> Lead | None:
        """The text that may precede the call: thoughts."""
        return self._before.lead

    def feed(self, text: str) -> list[Piece]:
        """Read text and return the thoughts in it."""
        return self._sorted(self._before.feed(text))

    def flush(self) -> list[Piece]:
        """Return the rest and the call; the text of the call if it was cut off."""
        pieces = self._sorted(self._before.flush())
        try:
            call = load_enforced_json(self._text)
            return [*pieces, FoundCall(call["name"], dict(call["arguments"]))]
        except (ValueError, KeyError, TypeError, RecursionError):
            return [*pieces, Content(self._text)] if self._text else pieces

    def _sorted(self, pieces: Sequence[Piece]) -> list[Piece]:
        self._text += "".join(piece.text for piece in pieces if isinstance(piece, Content))
        return [piece for piece in pieces if not isinstance(piece, Content)]


def _schema(function: Mapping[str, Any], label: str) -> Mapping[str, Any]:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise OptionError("tool_choice demands a call, but a tool of the request has no name")
    parameters = function.get("parameters") or {}
    types = parameters.get("type", "object") if isinstance(parameters, Mapping) else None
    if "object" not in (types if isinstance(types, list) else [types]):
        raise OptionError(f"the parameters of the tool {name!r:.80} must be the schema of an object")
    # With its own name, so that its references are to itself.
    arguments = named({"$id": label, **parameters, "type": "object"}, f"the tool {name!r:.80}")
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else {}
