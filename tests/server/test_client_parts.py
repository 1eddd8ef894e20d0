"""Files, items by their ids, choices among tools, and parts in chats, as sent by OpenAI's clients."""

from __future__ import annotations

import base64
from typing import Any

import openai
import pytest

from chaski.chat.requests import Generate
from chaski.errors import ResponseNotFoundError
from chaski.server.response_store import ResponseStore, StoredResponse
from tests.server.codex import CODEX_TOOLS, says, tools_of
from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.server.test_responses import prompt_of
from tests.server.thinker import fake, faked, fresh, script

__all__ = ["fake", "faked", "fresh", "script"]


def test_text_files_are_read(fake: Running, script: Script) -> None:
    def part(data: bytes, kind: str, name: str) -> dict[str, str]:
        return {
            "type": "input_file",
            "filename": name,
            "file_data": f"data:{kind};base64,{base64.b64encode(data).decode()}",
        }

    content = [
        part(b"pi = 3", "text/plain", "a.txt"),
        part(b'{"pi": 3}', "application/json", ""),
        part(b"%PDF-1.7", "application/pdf", "b.pdf"),
        {"type": "input_file", "filename": "c.txt", "file_data": base64.b64encode(b"tau = 6").decode()},
        {"type": "input_file", "file_id": "file-1"},
    ]
    reply = fake.post("/v1/responses", {"model": "thinker", "input": [{"role": "user", "content": content}]})
    assert reply.status == 200
    assert reply.headers["x-chaski-ignored"] == "document application/pdf, document file_id"
    prompt = prompt_of(script)
    assert '<document title="a.txt">\npi = 3\n</document>\n<document>\n{"pi": 3}\n</document>' in prompt
    assert '<document title="b.pdf">\n(a document of type application/pdf that could not be read)' in prompt
    assert '<document title="c.txt">\ntau = 6\n</document>' in prompt


def test_items_are_found_by_their_ids(faked: openai.OpenAI, script: Script) -> None:
    """The AI SDK sends them like this after a stored response."""
    says(script, "exec_command", cmd="ls")
    asked: Any = {"model": "thinker", "tools": CODEX_TOOLS[:1]}
    first = faked.responses.create(**asked, input="go")
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"}
    turns: Any = [{"role": "user", "content": "go"}, {"type": "item_reference", "id": call.id}, result]
    faked.responses.create(**asked, input=turns)
    assert '[user]go[assistant]{"cmd": "ls"}[tool]a.txt' in prompt_of(script)
    faked.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="send the item itself"):
        faked.responses.create(**asked, input=turns)


def test_items_are_forgotten_with_their_response() -> None:
    kept = ResponseStore(max_count=1)
    kept.add("me", StoredResponse({"id": "a", "output": [{"id": "x"}]}, []))
    assert kept.find_item("me", "x") == {"id": "x"}
    with pytest.raises(ResponseNotFoundError):
        kept.find_item("you", "x")
    kept.add("me", StoredResponse({"id": "b", "output": [{"id": "y"}]}, []))
    with pytest.raises(ResponseNotFoundError):
        kept.find_item("me", "x")
    assert kept.find_item("me", "y")


def test_a_choice_among_tools(faked: openai.OpenAI, script: Script) -> None:
    script.pieces = ('{"name":"local_shell","arguments":{"command":"ls | wc"}}',)
    asked: Any = {
        "model": "thinker",
        "input": "go",
        "tools": [{"type": "local_shell"}, {"type": "web_search"}, CODEX_TOOLS[0]],
        "reasoning": {"effort": "none"},
    }
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "local_shell"}]}
    for choice in ({"type": "local_shell"}, allowed):
        (item,) = faked.responses.create(**asked, tool_choice=choice).output
        assert item.action.command == ["bash", "-lc", "ls | wc"]
    demanded = [call for call in script.asked if isinstance(call, Generate)][-1].options["format"]
    assert [each["properties"]["name"]["const"] for each in demanded["anyOf"]] == ["local_shell"]
    for choice in ({"type": "web_search"}, {**allowed, "tools": [{"type": "web_search"}]}):
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            faked.responses.create(**asked, tool_choice=choice)


def test_custom_tools_in_chats(faked: openai.OpenAI, fake: Running, script: Script) -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+"}}
    tools: Any = [
        {"type": "custom", "custom": {"name": "dial", "description": "Calls.", "format": grammar}},
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
        {"type": "web_search"},
    ]
    asked: Any = {"model": "thinker", "messages": [{"role": "user", "content": "go"}], "tools": tools}
    says(script, "dial", input="911")
    reply = fake.post("/v1/chat/completions", asked)
    assert reply.headers["x-chaski-ignored"] == "format of tool dial, tool web_search"
    assert [tool["name"] for tool in tools_of(script)] == ["dial", "f"]
    message = faked.chat.completions.create(**asked).choices[0].message
    (call,) = message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "dial", "911")
    chunks = fake.post("/v1/chat/completions", asked | {"stream": True}).body.decode()
    assert '"finish_reason":"tool_calls"' in chunks
    assert '"type":"custom","custom":{"name":"dial","input":"911"}' in chunks
    history = [*asked["messages"], message.to_dict()]
    history.append({"role": "tool", "tool_call_id": call.id, "content": "rings"})
    faked.chat.completions.create(**asked | {"messages": history})
    assert '[user]go[assistant]{"input": "911"}[tool]rings[assistant]' in prompt_of(script)
    script.pieces = ('{"name":"dial","arguments":{"input":"0"}}',)
    named = {"type": "custom", "custom": {"name": "dial"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for choice in (named, allowed):
        forced = faked.chat.completions.create(**asked, tool_choice=choice, reasoning_effort="none")
        assert forced.choices[0].message.tool_calls[0].custom.input == "0"
        assert forced.choices[0].finish_reason == ("stop" if choice is named else "tool_calls")
    chosen = asked | {"tool_choice": named, "stream": True, "reasoning_effort": "none"}
    assert '"finish_reason":"stop"' in fake.post("/v1/chat/completions", chosen).body.decode()
    demanded = [call for call in script.asked if isinstance(call, Generate)][-1].options["format"]
    assert [each["properties"]["name"]["const"] for each in demanded["anyOf"]] == ["dial"]
    for bad in ({"type": "web_search"}, {"type": "allowed_tools", "allowed_tools": {"mode": "no"}}):
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            faked.chat.completions.create(**asked, tool_choice=bad)


def test_files_and_other_parts_in_chats(fake: Running, script: Script) -> None:
    data = base64.b64encode(b"pi = 3").decode()
    content = [
        {"type": "file", "file": {"filename": "a.txt", "file_data": f"data:text/plain;base64,{data}"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "what?"},
    ]
    messages = [{"role": "user", "content": content}, {"role": "function", "name": "f", "content": "5"}]
    reply = fake.post("/v1/chat/completions", {"model": "thinker", "messages": messages})
    assert reply.status == 200
    assert reply.headers["x-chaski-ignored"] == "document file_id, content thinking"
    assert '<document title="a.txt">\npi = 3\n</document>' in prompt_of(script)
    assert "\nwhat?[tool]5[assistant]" in prompt_of(script)
    audio = [{"role": "user", "content": [{"type": "input_audio"}]}]
    assert fake.post("/v1/chat/completions", {"model": "thinker", "messages": audio}).status == 400
