"""Tools, items and parts of OpenAI's APIs beside functions and text, as Codex and `openai` send them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from chaski.chat.requests import Generate
from chaski.errors import ResponseNotFoundError
from chaski.server.dialects.responses import read_response
from chaski.server.response_store import ResponseStore, StoredResponse
from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.server.test_openai_client import client_of, fake, fresh, script
from tests.server.test_responses import prompt_of

__all__ = ["fake", "fresh", "script"]

PATCH = "*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch"
# As Codex 0.169 sends them for a model that it knows, shortened.
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
CODEX: Any = {
    "model": "thinker",
    "tools": CODEX_TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "input": "write hello to a.txt",
}


@pytest.fixture(scope="module")
def faked(fake: Running) -> Iterator[openai.OpenAI]:
    with client_of(fake) as found:
        yield found


def says(script: Script, name: str, **arguments: object) -> None:
    script.pieces = (f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>",)


def tools_of(script: Script) -> list[Any]:
    """The tools that the prompt tells of."""
    found: list[Any] = json.JSONDecoder().raw_decode(prompt_of(script))[0]
    return [tool["function"] for tool in found]


def test_what_codex_asks_for_is_answered(fake: Running, script: Script) -> None:
    for stream in (False, True):
        reply = fake.post("/v1/responses", CODEX | {"stream": stream})
        assert reply.status == 200
        assert reply.headers["x-chaski-ignored"] == (
            "field tools[].description, format of tool apply_patch, tool web_search, "
            "include reasoning.encrypted_content"
        )
    names = [tool["name"] for tool in tools_of(script)]
    assert names == ["exec_command", "apply_patch", "agents.close", "tool_search"]
    patch = tools_of(script)[1]
    assert patch["description"] == (
        "Edits files.\n\nThe input follows this grammar (lark):\nstart: begin hunk+ end"
    )
    assert patch["parameters"]["required"] == ["input"]
    assert "x-chaski-ignored" not in fake.post("/v1/responses", {"model": "thinker", "input": "x"}).headers


def test_calls_of_custom_tools_are_items_of_their_own(faked: openai.OpenAI, script: Script) -> None:
    says(script, "apply_patch", input=PATCH)
    (whole,) = faked.responses.create(**CODEX).output
    assert (whole.type, whole.name, whole.input) == ("custom_tool_call", "apply_patch", PATCH)
    events = list(faked.responses.create(**CODEX, stream=True))
    names = [event.type.removeprefix("response.") for event in events]
    assert names == [
        *("created", "in_progress", "output_item.added"),
        *("custom_tool_call_input.delta", "custom_tool_call_input.done"),
        *("output_item.done", "completed"),
    ]
    added, delta, done, item = events[2:6]
    assert (added.item.input, delta.delta, done.input, item.item.input) == ("", PATCH, PATCH, PATCH)
    assert len({added.item.id, delta.item_id, done.item_id, item.item.id}) == 1
    says(script, "apply_patch", text="odd")
    assert faked.responses.create(**CODEX).output[0].input == '{"text": "odd"}'
    script.pieces = ('{"name":"apply_patch","arguments":{"input":"x"}}',)
    (forced,) = faked.responses.create(
        **CODEX | {"tool_choice": {"type": "custom", "name": "apply_patch"}, "reasoning": {"effort": "none"}}
    ).output
    assert (forced.type, forced.input) == ("custom_tool_call", "x")


@pytest.mark.parametrize(
    ("tool", "arguments", "call", "result"),
    [
        (
            {"type": "local_shell"},
            {"command": ["ls", "-l"], "working_directory": "/x"},
            {"type": "local_shell_call", "action": {"command": ["ls", "-l"], "working_directory": "/x"}},
            {"type": "local_shell_call_output", "output": "a.txt"},
        ),
        (
            {"type": "shell", "environment": {"type": "local"}},
            {"commands": ["ls"], "timeout_ms": 5},
            {"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": 5}},
            {"type": "shell_call_output", "output": [{"stdout": "a.txt", "stderr": ""}]},
        ),
        (
            {"type": "apply_patch"},
            {"type": "create_file", "path": "a.txt", "diff": "+a.txt"},
            {"type": "apply_patch_call", "operation": {"path": "a.txt", "diff": "+a.txt"}},
            {"type": "apply_patch_call_output", "status": "completed", "output": "made a.txt"},
        ),
        (
            {"type": "tool_search", "execution": "client"},
            {"query": "files"},
            {"type": "tool_search_call", "arguments": {"query": "files"}, "execution": "client"},
            {"type": "tool_search_output", "tools": [{"type": "function", "name": "find a.txt"}]},
        ),
        (
            {"type": "custom", "name": "note"},
            {"input": "remember"},
            {"type": "custom_tool_call", "name": "note", "input": "remember"},
            {"type": "custom_tool_call_output", "output": [{"type": "input_text", "text": "a.txt"}]},
        ),
    ],
)  # fmt: skip
def test_tools_that_clients_run(
    faked: openai.OpenAI,
    script: Script,
    tool: Any,
    arguments: dict[str, Any],
    call: dict[str, Any],
    result: Any,
) -> None:
    """The model is told of a function; its call is an item of the tool's type, and goes back."""
    name = tool.get("name", tool["type"])
    says(script, name, **arguments)
    asked: Any = {"model": "thinker", "tools": [tool]}
    first = faked.responses.create(**asked, input="go")
    (item,) = first.output
    found = item.model_dump(exclude_none=True)
    for key, value in call.items():
        if key in ("action", "operation"):
            assert {name: found[key][name] for name in value} == value
        else:
            assert found[key] == value
    assert tools_of(script)[0]["name"] == name
    *_, done, _ = faked.responses.create(**asked, input="go", stream=True)
    assert (done.type, done.item.type) == ("response.output_item.done", call["type"])
    answer = {**result, "call_id": item.call_id}
    faked.responses.create(**asked, input=[answer], previous_response_id=first.id)
    remembered = prompt_of(script)
    history: Any = [{"role": "user", "content": "go"}, item.to_dict(), answer]
    faked.responses.create(**asked, input=history, store=False)
    assert prompt_of(script) == remembered
    assert f"[assistant]{json.dumps(arguments)}[tool]" in remembered
    assert "a.txt" in remembered.rpartition("[tool]")[2]


def test_tools_that_a_search_found_can_be_called(script: Script, faked: openai.OpenAI) -> None:
    search: Any = [
        {"role": "user", "content": "go"},
        {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "custom", "name": "found"}]},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "more"}]},
    ]
    says(script, "more", input="now")
    (item,) = faked.responses.create(model="thinker", input=search, tools=[CODEX_TOOLS[0]]).output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "more", "now")
    assert [tool["name"] for tool in tools_of(script)] == ["exec_command", "found", "more"]


def test_items_of_tools_that_ran_elsewhere_are_read_or_named() -> None:
    items = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAA"},
        {"type": "web_search_call", "id": "ws", "action": {"type": "search", "query": "x"}},
        {"type": "mcp_list_tools", "id": "ml", "server_label": "s", "tools": []},
        {"type": "mcp_call", "id": "mc", "name": "f", "arguments": '{"x":1}', "output": "one"},
        {"type": "mcp_call", "id": "md", "name": "f", "arguments": "{}", "error": {"code": 5}},
        {"type": "code_interpreter_call", "id": "ci", "code": "1+1", "outputs": [{"logs": "2"}]},
        {"type": "file_search_call", "id": "fs", "queries": ["q"], "results": [{"text": "page"}]},
        {"type": "image_generation_call", "id": "ig", "result": "abc", "status": "completed"},
        {"type": "compaction", "encrypted_content": "gAAA"},
        {"type": "made_up_item", "text": "x\r\nset-cookie: y"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "so"}, {"type": "made_up,part"}]},
    ]  # fmt: skip
    wish = read_response({"model": "m", "input": items, "tools": [{"type": "made\r\nup"}]})
    said = [
        (turn["role"], [call["function"]["name"] for call in turn.get("tool_calls", ())], turn["content"])
        for turn in wish.turns
    ]
    assert said == [
        ("user", [], "go"),
        ("assistant", ["f"], ""),
        ("tool", [], "one"),
        ("assistant", ["f"], ""),
        ("tool", [], '{"code": 5}'),
        ("assistant", ["code_interpreter"], ""),
        ("tool", [], "2"),
        ("assistant", ["file_search"], ""),
        ("tool", [], "page"),
        ("assistant", [], "so"),
    ]
    assert list(wish.chat.ignored) == [
        "tool made??up",
        "item reasoning.encrypted_content",
        "item web_search_call",
        "item mcp_list_tools",
        "item image_generation_call",
        "item compaction",
        "item made_up_item",
        "content made_up?part",
    ]


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
    """As the AI SDK sends them behind a response that is kept."""
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


# ---- chat completions ----


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
