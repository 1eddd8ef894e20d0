"""Tools in Codex's form, and a model that calls them."""

from __future__ import annotations

import json
from typing import Any

from tests.server.fake_worker import Script
from tests.server.test_responses import prompt_of

# As sent by Codex 0.169 for a known model, shortened.
CODEX_TOOLS: Any = [
    {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}},
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin hunk+ end"},
    },
    {
        "type": "namespace",
        "name": "agents",
        "description": "Other agents.",
        "tools": [{"type": "function", "name": "close", "strict": False, "parameters": {"type": "object"}}],
    },
    {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
    {"type": "web_search", "external_web_access": False},
]


def says(script: Script, name: str, **arguments: object) -> None:
    script.pieces = (f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>",)


def tools_of(script: Script) -> list[Any]:
    """Return the tools in the prompt."""
    found: list[Any] = json.JSONDecoder().raw_decode(prompt_of(script))[0]
    return [tool["function"] for tool in found]
