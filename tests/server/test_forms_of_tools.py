"""Tools in the forms of all dialects, on every route: accepted with their names, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from chaski.errors import OptionError
from chaski.server.dialects import anthropic, ollama, openai, responses

_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "chat completions": {
        "type": "function",
        "function": {"name": "weather", "description": "Tells it.", "parameters": _SCHEMA},
    },
    "responses": {
        "type": "function",
        "name": "weather",
        "description": "Tells it.",
        "parameters": _SCHEMA,
    },
    "anthropic": {"name": "weather", "description": "Tells it.", "input_schema": _SCHEMA},
    "anthropic custom": {
        "type": "custom",
        "name": "weather",
        "description": "Tells it.",
        "input_schema": _SCHEMA,
    },
}
_CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
READERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "/api/chat": lambda tools: ollama.read_chat({**_CHAT, "tools": tools}).tools,
    "/v1/chat/completions": lambda tools: openai.read_chat({**_CHAT, "tools": tools}).tools,
    "/v1/messages": lambda tools: anthropic.read_messages({**_CHAT, "tools": tools}).tools,
    "/v1/responses": lambda tools: responses.read_response(
        {"model": "m", "input": "hi", "tools": tools}
    ).chat.tools,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", READERS)
def test_every_form_is_taken_on_every_route(route: str, form: str) -> None:
    (tool,) = READERS[route]([FORMS[form]])
    assert tool["function"] == FORMS["chat completions"]["function"]


@pytest.mark.parametrize("route", READERS)
@pytest.mark.parametrize(
    "tool", [{"type": "function"}, {"type": "function", "function": {}}, {"input_schema": _SCHEMA}]
)
def test_a_tool_without_a_name_is_refused(route: str, tool: Mapping[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"name is missing|has no name"):
        READERS[route]([tool])
