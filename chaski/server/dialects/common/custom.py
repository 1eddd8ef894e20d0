"""Custom tools of OpenAI's APIs, which take plain text. The model sees them as functions of one `input`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.server.fields.ignored import Ignored
from chaski.server.fields.reader import Fields
from chaski.server.network.jsons import dump_text

__all__ = ["PARAMETERS", "custom_description", "custom_input"]

PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


def custom_input(arguments: Mapping[str, Any]) -> str:
    """Return the text of a call, or all of its arguments as JSON if the text is missing."""
    given = arguments.get("input")
    return given if isinstance(given, str) else dump_text(arguments)


def custom_description(name: str, description: str, grammar: Fields, ignored: Ignored) -> str:
    """Return the description, with the grammar of the input if there is one. It is not enforced."""
    definition = grammar.text("definition")
    if not definition:
        return description
    ignored.add("format of tool", name)
    told = f"The input follows this grammar ({grammar.text('syntax')}):\n{definition}"
    return f"{description}\n\n{told}".lstrip()
