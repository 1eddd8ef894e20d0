"""Tools in the form that stricter templates need: some fail for a tool or parameter without a description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["with_descriptions"]


def with_descriptions(tools: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the tools with a description and a type for each tool and each top-level parameter."""
    return [{**tool, "function": _described_function(tool.get("function"))} for tool in tools]


def _described_function(function: object) -> object:
    if not isinstance(function, Mapping):
        return function
    parameters = function.get("parameters")
    found = dict(parameters) if isinstance(parameters, Mapping) else {}
    properties = found.get("properties")
    described = {
        name: {"type": "string", "description": "", **value} if isinstance(value, Mapping) else value
        for name, value in (properties.items() if isinstance(properties, Mapping) else ())
    }
    return {
        "description": "",
        **function,
        "parameters": {"type": "object", "required": [], **found, "properties": described},
    }
