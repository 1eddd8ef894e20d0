"""Blocks and tools of every kind in Anthropic's API."""

from __future__ import annotations

import base64
from typing import Any

from chaski.chat.requests import Generate
from chaski.server.dialects.anthropic import read_messages
from tests.server.anthropic_clients import ASKED, QUESTION, prompts
from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.server.thinker import fake, fresh, script

__all__ = ["fake", "fresh", "script"]


def last_prompt(script: Script) -> Any:
    return [each for each in script.asked if isinstance(each, Generate)][-1].prompt


def text_document(kind: str, **source: Any) -> dict[str, Any]:
    return {"type": "document", "title": "a.txt", "source": {"type": kind, **source}}


ENCODED = base64.b64encode(b"tau = 6").decode()
RESULTS = [{"type": "web_search_result", "title": "t", "url": "u", "encrypted_content": "e"}]
BLOCKS: Any = [
    {
        "role": "user",
        "content": [
            {**text_document("text", media_type="text/plain", data="pi = 3"), "context": "numbers"},
            text_document("content", content=[{"type": "text", "text": "e = 2"}]),
            text_document("base64", media_type="text/plain", data=ENCODED),
            text_document("base64", media_type="application/pdf", data="JVBERi0="),
            text_document("url", url="https://example.org/a.pdf"),
            {"type": "container_upload", "file_id": "file_1"},
            {"type": "search_result", "source": "s", "title": "t", "content": [{"text": "r"}]},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "abc"},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": RESULTS},
            {"type": "text", "text": "so", "citations": []},
            {"type": "tool_use", "id": "t1", "name": "find", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [
                    {"type": "tool_reference", "tool_name": "weather"},
                    text_document("text", media_type="text/plain", data="cold"),
                ],
            },
            {"type": "made_up", "x": 1},
        ],
    },
]  # fmt: skip


def test_blocks_that_are_no_text_never_fail_a_conversation(fake: Running, script: Script) -> None:
    system = [
        {"type": "text", "text": "Be kind."},
        {"type": "mystery"},
        {"type": "text", "text": "Be brief."},
    ]
    reply = fake.post("/v1/messages", {**ASKED, "messages": BLOCKS, "system": system})
    assert reply.status == 200
    assert "[system]Be kind.\n\nBe brief.[user]" in bytes(last_prompt(script)).decode()
    assert reply.headers["x-chaski-ignored"] == (
        "block mystery, document application/pdf, document url, block container_upload, "
        "block redacted_thinking, block server_tool_use, block web_search_tool_result, block made_up"
    )
    (prompt,) = prompts(script)
    assert '<document title="a.txt">\nnumbers\npi = 3\n</document>' in prompt
    assert "e = 2" in prompt
    assert '<document title="a.txt">\ntau = 6\n</document>' in prompt
    assert "type application/pdf that could not be read" in prompt
    assert '<document title="t">\ns\nr\n</document>' in prompt
    assert '[assistant]so{}[tool]weather\n<document title="a.txt">\ncold\n</document>[assistant]' in prompt


def test_tools_of_every_type() -> None:
    tools = [
        {"name": "own", "input_schema": {"type": "object"}},
        {"type": "custom", "name": "typed", "input_schema": {"type": "object"}},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250124", "name": "str_replace_editor"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 800, "display_height_px": 600},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "computer_toolset_20260801", "name": "computer"},
        {"type": "mcp_toolset", "mcp_server_name": "m"},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    ]
    wish = read_messages({**ASKED, "messages": [QUESTION], "tools": tools})
    found = {tool["function"]["name"]: tool["function"] for tool in wish.tools}
    assert [*found] == [
        "own", "typed", "bash", "str_replace_editor", "str_replace_based_edit_tool", "memory", "computer",
    ]  # fmt: skip
    assert [*found["bash"]["parameters"]["properties"]] == ["command", "restart"]
    editors = [found[name]["parameters"]["properties"] for name in [*found][3:5]]
    assert ["undo_edit" in editor["command"]["enum"] for editor in editors] == [True, False]
    assert ["insert_text" in editor for editor in editors] == [False, True]
    assert "rename" in found["memory"]["parameters"]["properties"]["command"]["enum"]
    assert "800 x 600 pixels" in found["computer"]["description"]
    assert wish.ignored == (
        "tool web_search_20250305",
        "tool code_execution_20250825",
        "tool computer_toolset_20260801",
        "tool mcp_toolset",
        "tool tool_search_tool_regex_20251119",
    )


def test_tools_come_and_go_with_messages() -> None:
    def change(kind: str, **tool: Any) -> dict[str, Any]:
        return {"role": "system", "content": [{"type": kind, "tool": tool}]}

    named = {"type": "tool_reference", "name": "a"}
    inline = {"type": "tool_definition", "definition": {"name": "c", "input_schema": {"type": "object"}}}
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in "ab"]
    steps = [
        change("tool_removal", **named),
        change("tool_addition", **inline),
        change("tool_addition", **named),
    ]
    for count, names in ((0, "ab"), (1, "b"), (2, "bc"), (3, "abc")):
        wish = read_messages({**ASKED, "tools": tools, "messages": [QUESTION, *steps[:count]]})
        assert "".join(tool["function"]["name"] for tool in wish.tools) == names
        assert [message["role"] for message in wish.messages] == ["user"]


def test_a_choice_of_a_tool_that_runs_elsewhere_is_refused(fake: Running) -> None:
    asked = {
        **ASKED,
        "messages": [QUESTION],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    }
    assert fake.post("/v1/messages", asked).status == 200
    for choice in ({"type": "tool", "name": "web_search"}, {"type": "any"}):
        refused = fake.post("/v1/messages", asked | {"tool_choice": choice})
        assert refused.status == 400
        assert "no such tool" in refused.json["error"]["message"]
    refused = fake.post("/v1/messages", asked | {"compaction": {"type": "summarize"}})
    assert "compaction is not supported" in refused.json["error"]["message"]


def _system_of(system: Any) -> list[dict[str, Any]]:
    asked = {"model": "m", "max_tokens": 1, "system": system, "messages": [{"role": "user", "content": "Hi"}]}
    return [dict(message) for message in read_messages(asked).messages if message["role"] == "system"]


def test_the_line_of_accounting_is_left_out() -> None:
    """Claude Code's first line changes with each request, so later tokens would never be cached."""
    line = "x-anthropic-billing-header: cc_version=2.1.15.e1c; cc_entrypoint=cli; cch=4f2a1;"
    kept = [{"role": "system", "content": "Be kind."}]
    be_kind = {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}
    for system in (
        [{"type": "text", "text": line}, be_kind],
        [{"type": "text", "text": f"{line}\n\nBe kind."}],
        f"{line}\nBe kind.",
        f"{line.upper()}\nBe kind.",
    ):
        assert _system_of(system) == kept
    assert _system_of([{"type": "text", "text": line}]) == []
    assert _system_of(line) == []
    other = f"Mention {line}"
    assert _system_of(other) == [{"role": "system", "content": other}]
