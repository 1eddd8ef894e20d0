"""Fields inside objects and list elements: each is read, refused, harmless, or named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from chaski.errors import UnsupportedError
from chaski.server.dialects import anthropic, ollama, openai, responses
from chaski.server.fields.audit import unread_fields
from chaski.server.fields.unread import HARMLESS
from chaski.server.routes import BODIES
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import running

TEXT = "dGV4dA=="
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg=="
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
# The whole function goes to the model's template; the answer reports that no grammar enforces its schema.
WHOLE = "tools[].function."
# Objects that are passed on unchanged, whatever they contain.
OPAQUE = {"parameters", "input_schema", "schema", "input", "arguments", "action"}
# Fields that clients send back from an answer, and fields that only describe the request's format.
GIVEN_BACK = {
    *("id", "type", "status", "index", "signature", "annotations", "citations", "logprobs", "name", "title"),
    *("media_type", "encrypted_content", "eager_input_streaming", "strict", "role", "namespace", "execution"),
}


class Recording(dict[str, Any]):
    """An object of a request that records which of its fields, and those of its parts, are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__({name: recorded(value) for name, value in values.items()})
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


def recorded(value: Any) -> Any:
    if isinstance(value, dict):
        return Recording(value)
    return [recorded(item) for item in value] if isinstance(value, list) else value


def read_and_unread(value: Any, path: str = "") -> Iterator[tuple[str, bool]]:
    """Return the paths of all fields, and whether each was read; unread ones are not descended into."""
    if isinstance(value, list):
        for item in value:
            yield from read_and_unread(item, f"{path}[]")
    elif isinstance(value, Recording):
        for name, part in value.items():
            within = f"{path}.{name}" if path else name
            yield within, name in value.read
            if name in value.read and not (name in OPAQUE and isinstance(part, dict)):
                yield from read_and_unread(part, within)


CHAT = {
    "messages": [
        {"role": "system", "name": "judge", "content": [{"type": "text", "text": "x", "mood": 1}]},
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "image_url", "image_url": {"url": f"data:;base64,{IMAGE}", "detail": "low"}},
                {"type": "file", "file": {"filename": "a.txt", "file_data": TEXT, "pages": 2}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "refusal": "no",
            "reasoning": "x",
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "index": 0,
                    "function": {"name": "f", "arguments": "{}", "a": 1},
                },
                {"id": "2", "type": "custom", "custom": {"name": "g", "input": "x", "b": 1}, "note": 1},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "name": "f", "content": "x", "cost": 3},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}},
        {
            "type": "custom",
            "custom": {
                "name": "g",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x", "a": 1}},
            },
        },
    ],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": SCHEMA, "strict": True, "description": "d"},
    },
    "tool_choice": {"type": "function", "function": {"name": "f", "when": "now"}},
}
MESSAGES = {
    "model": "m",
    "max_tokens": 1,
    "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}, "tone": 1}],
    "messages": [
        {
            "role": "user",
            "id": "m1",
            "content": [
                {"type": "text", "text": "x", "citations": []},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": IMAGE, "a": 1},
                },
                {
                    "type": "document",
                    "title": "t",
                    "context": "c",
                    "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                    "citations": {"enabled": True},
                },
                {
                    "type": "search_result",
                    "title": "t",
                    "source": "s",
                    "content": [{"type": "text", "text": "x", "b": 1}],
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "x", "signature": "s", "c": 1},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}, "caller": {"type": "direct"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "x", "d": 1}],
                    "e": 1,
                },
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f", "f": 1}},
            ],
        },
    ],
    "tools": [
        {"name": "f", "description": "d", "input_schema": SCHEMA, "strict": True, "defer_loading": True},
        {"type": "bash_20250124", "name": "bash", "g": 1},
        {
            "type": "computer_20250124",
            "name": "computer",
            "display_width_px": 1,
            "display_height_px": 1,
            "display_number": 2,
        },
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True, "h": 1},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA, "i": 1}},
}
RESPONSE = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x", "a": 1}], "phase": "p"},
        {
            "type": "message",
            "id": "m",
            "status": "completed",
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": f"data:;base64,{IMAGE}", "detail": "high"},
                {"type": "input_file", "filename": "a.txt", "file_data": TEXT, "b": 1},
            ],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "x", "annotations": [], "logprobs": []}],
        },
        {
            "type": "reasoning",
            "id": "r",
            "summary": [{"type": "summary_text", "text": "x", "c": 1}],
            "encrypted_content": "x",
            "d": 1,
        },
        {
            "type": "function_call",
            "call_id": "1",
            "name": "f",
            "arguments": "{}",
            "status": "completed",
            "e": 1,
        },
        {"type": "function_call_output", "call_id": "1", "output": "x", "f": 1},
        {"type": "local_shell_call", "call_id": "2", "action": {"command": ["ls"]}, "g": 1},
        {"type": "local_shell_call_output", "id": "2", "output": "x", "h": 1},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True},
        {
            "type": "custom",
            "name": "g",
            "format": {"type": "grammar", "syntax": "lark", "definition": "x", "i": 1},
        },
        {"type": "shell", "environment": {"type": "local", "skills": []}},
        {
            "type": "namespace",
            "name": "n",
            "description": "d",
            "tools": [{"type": "function", "name": "h", "j": 1}],
        },
    ],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "description": "d"}},
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f", "k": 1}],
    },
}
NATIVE = {
    "messages": [
        {"role": "user", "content": "x", "images": [IMAGE], "name": "ann"},
        {
            "role": "assistant",
            "thinking": "x",
            "tool_calls": [{"id": "1", "function": {"index": 0, "name": "f", "arguments": {}, "a": 1}}],
        },
        {"role": "tool", "tool_name": "f", "tool_call_id": "1", "content": "x", "is_error": True},
    ],
}


@pytest.mark.parametrize(
    ("path", "read", "body"),
    [
        ("/v1/chat/completions", openai.read_chat, CHAT),
        ("/v1/messages", anthropic.read_messages, MESSAGES),
        ("/v1/responses", responses.read_response, RESPONSE),
        ("/api/chat", ollama.read_chat, NATIVE),
    ],
)
def test_what_is_not_read_is_named(path: str, read: Callable[[Any], Any], body: dict[str, Any]) -> None:
    named = set(unread_fields(body, BODIES["POST", path].fields))
    assert len(named) >= 3
    recording = Recording(body)
    read(recording)
    unread = {field for field, is_read in read_and_unread(recording) if not is_read}
    assert {field for field in named if not field.startswith((*unread, WHOLE))} == set()
    silent = {field for field in unread - named if not field.startswith(WHOLE)}
    assert {field.rpartition(".")[2] for field in silent} <= GIVEN_BACK | HARMLESS


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "name": "ann"}]}, ["messages[].name"]),
        ("/v1/chat/completions", {"messages": [{"role": "tool", "name": "f"}]}, []),
        ("/v1/chat/completions", {"tools": [{"function": {"strict": True}}]}, ["tools[].function.strict"]),
        ("/v1/chat/completions", {"tools": [{"function": {"strict": False, "x-mine": 1}}]}, []),
        ("/v1/messages", {"tools": [{"name": "f", "strict": True}]}, ["tools[].strict"]),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x", "name": None}]}, []),
        ("/v1/responses", {"input": "x", "tools": [{"type": "web_search", "filters": {}}]}, []),
        ("/v1/rerank", {"documents": ["x", {"text": "x", "title": "t"}]}, ["documents[].title"]),
        ("/api/create", {"messages": [{"role": "user", "images": ["x"]}]}, ["messages[].images"]),
        ("/api/create", {"parameters": {"heat": 1, "stop": ["x"]}}, ["parameters.heat"]),
    ],
)
def test_single_fields(path: str, body: dict[str, Any], named: list[str]) -> None:
    assert list(unread_fields(body, BODIES["POST", path].fields)) == named


def test_what_would_change_the_answer_is_refused_with_its_place() -> None:
    body = {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]}
    with pytest.raises(UnsupportedError, match=r"^messages\[\]\.function_call is not supported here"):
        list(unread_fields(body, BODIES["POST", "/v1/chat/completions"].fields))


def test_the_header_names_a_field_once(tmp_path: Any) -> None:
    with running(Settings(address=SOMEWHERE), tmp_path, Script().open) as server:
        turns = [{"role": "user", "content": "x", "name": "ann"}] * 3
        reply = server.post("/v1/chat/completions", {"model": "guide", "messages": turns})
        assert reply.headers["x-chaski-ignored"] == "field messages[].name"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("no such file", "Error: no such file"),
        ("error: no such file", "error: no such file"),
        (
            [{"type": "text", "text": "<tool_use_error>no</tool_use_error>"}],
            "<tool_use_error>no</tool_use_error>",
        ),
    ],
)
def test_a_result_that_is_an_error_says_so_to_the_model(content: Any, told: str) -> None:
    def result(**more: Any) -> Any:
        block = {"type": "tool_result", "tool_use_id": "1", "content": content, **more}
        body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}
        return anthropic.read_messages(body).messages[0]["content"]

    assert result(is_error=True) == told
    assert result(is_error=False) == result() == (content if isinstance(content, str) else told)
