"""Tools, and feeding parsers in portions."""

from __future__ import annotations

from typing import Any

from chaski.text.parsers import FoundCall
from chaski.text.parsers.formats import parser_for

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "on": {"type": ["boolean", "null"]},
                    "deep": {"anyOf": [{"type": "object"}, {"type": "array"}]},
                    "ratio": {"type": "number"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
CALL = FoundCall("get_weather", {"city": "Rome"})
NOW = FoundCall("now", {})


def joined(pieces):
    """Join adjacent pieces of one kind."""
    result: list[Any] = []
    for piece in pieces:
        if result and not isinstance(piece, FoundCall) and type(result[-1]) is type(piece):
            result[-1] = type(piece)(result[-1].text + piece.text)
        else:
            result.append(piece)
    return result


def parsed(format, portions, tools=TOOLS, prompt="", **options):
    parser = parser_for(format, tools, prompt, **options)
    pieces = [piece for portion in portions for piece in parser.feed(portion)]
    pieces += parser.flush()
    assert all(isinstance(piece, FoundCall) or piece.text for piece in pieces)
    return joined(pieces)


ROME = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
