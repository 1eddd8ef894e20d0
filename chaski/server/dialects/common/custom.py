"""Custom tools of OpenAI's APIs: called with a text, which to the model is a function of one `input`."""

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
    """The text that a call is for; what the model gave instead of it, as JSON."""
    given = arguments.get("input")
    return given if isinstance(given, str) else dump_text(arguments)


def custom_description(name: str, description: str, grammar: Fields, ignored: Ignored) -> str:
    """Return the description, with the grammar of the input if there is one, which nothing enforces."""
    definition = grammar.text("definition")
    if not definition:
        return description
    ignored.add("format of tool", name)
    told = f"The input follows this grammar ({grammar.text('syntax')}):\n{definition}"
    return f"{description}\n\n{told}".lstrip()
