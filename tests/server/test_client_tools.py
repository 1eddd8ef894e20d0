"""Tools, items and parts of OpenAI's APIs other than functions and text, as sent by Codex and `openai`."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from chaski.server.dialects.responses import read_response
from tests.server.codex import CODEX_TOOLS, says, tools_of
from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.server.test_responses import prompt_of
from tests.server.thinker import fake, faked, fresh, script

__all__ = ["fake", "faked", "fresh", "script"]


PATCH = "*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch"
CODEX: Any = {
    "model": "thinker",
    "tools": CODEX_TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "input": "write hello to a.txt",
}


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
    """The model gets a function; its call becomes an item of the tool's type, which can be sent back."""
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
