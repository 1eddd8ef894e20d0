"""Threads and blocks of Anthropic's API, as the `anthropic` package's own tool runner sends them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import beta_tool

from chaski.chat.requests import Generate
from chaski.server.dialects.anthropic import read_messages
from chaski.server.response_store import ResponseStore
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.server.test_openai_client import fake, fresh, script

__all__ = ["fake", "fresh", "script"]

QUESTION: Any = {"role": "user", "content": "how warm is it?"}
ASKED: Any = {"model": "thinker", "max_tokens": 50}


@beta_tool
def weather(city: str) -> str:
    """How warm it is in a city."""
    return f"12 degrees in {city}"


@pytest.fixture(scope="module")
def client(fake: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=fake.url, api_key="any", max_retries=0) as found:
        yield found


def says(script: Script, *turns: str) -> None:
    """One turn after the other."""
    rest = iter(turns)

    class Turns:
        def __iter__(self) -> Iterator[str]:
            return iter((next(rest),))

        def __len__(self) -> int:
            return 1

    script.pieces = Turns()  # type: ignore[assignment]


def call(city: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'weather', 'arguments': {'city': city}})}</tool_call>"


def last_prompt(script: Script) -> Any:
    return [each for each in script.asked if isinstance(each, Generate)][-1].prompt


def prompts(script: Script) -> list[str]:
    """What was asked, without the description of tools."""
    asked = [bytes(each.prompt).decode() for each in script.asked if isinstance(each, Generate)]
    return [prompt[prompt.index("[user]") :].partition("<think>")[0] for prompt in asked]


WRITTEN = [
    "[user]how warm is it?[assistant]",
    '[user]how warm is it?[assistant]{"city": "Cusco"}[tool]12 degrees in Cusco[assistant]',
    '[user]how warm is it?[assistant]{"city": "Cusco"}[tool]12 degrees in Cusco'
    '[assistant]And there?{"city": "Lima"}[tool]12 degrees in Lima[assistant]',
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("loses", [False, True])
def test_the_tool_runner_keeps_its_conversation(
    client: anthropic.Anthropic, fake: Running, script: Script, stream: bool, loses: bool
) -> None:
    """With threads that are kept, and with those that the server forgets: then it sends all again."""
    says(script, call("Cusco"), f"And there?{call('Lima')}", "Cold.")
    runner: Any = client.beta.messages.tool_runner(
        **ASKED, system="Be brief.", messages=[QUESTION], tools=[weather], stream=stream
    )
    texts, sent = [], []
    for turn in runner:
        message = turn.get_final_message() if stream else turn
        texts.append("".join(block.text for block in message.content if block.type == "text"))
        sent.append(runner._thread._state.threading)
        if loses:
            fake.services.threads._found.clear()
    assert texts == ["", "And there?", "Cold."]
    assert prompts(script) == WRITTEN
    assert sent[0] is True
    assert all(
        "Be brief." in bytes(each.prompt).decode() for each in script.asked if isinstance(each, Generate)
    )


def test_threads_go_on_for_their_owner_only(fake: Running, script: Script) -> None:
    first = fake.post("/v1/messages", {**ASKED, "messages": [QUESTION], "thread": {"type": "create"}}).json
    then = {**ASKED, "messages": [{"role": "user", "content": "and now?"}]}
    then["thread"] = {"type": "continue", "previous_message_id": first["id"]}
    count = fake.post("/v1/messages/count_tokens", then)
    second = fake.post("/v1/messages", then)
    assert second.status == 200
    assert prompts(script)[-1] == "[user]how warm is it?[assistant]hello[user]and now?[assistant]"
    usage = second.json["usage"]
    assert count.json["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    third = fake.post(
        "/v1/messages", then | {"thread": {"type": "continue", "previous_message_id": second.json["id"]}}
    )
    assert prompts(script)[-1].count("[user]") == 3
    assert third.status == 200
    stranger = fake.post("/v1/messages", then, authorization="Bearer other")
    unkept = fake.post("/v1/messages", {**ASKED, "messages": [QUESTION]}).json["id"]
    lost = fake.post("/v1/messages", then | {"thread": {"type": "continue", "previous_message_id": unkept}})
    for refused in (stranger, lost):
        error = refused.json["error"]
        assert (refused.status, error["type"]) == (404, "not_found_error")
        assert error["details"] == {"error_code": "thread_not_found"}


@pytest.mark.parametrize(
    ("fields", "details"),
    [
        (
            {"thread": {"type": "fork"}},
            {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        ),
        ({"system": "other"}, {"error_code": "thread_fingerprint_mismatch"}),
        ({"tools": []}, {"error_code": "thread_fingerprint_mismatch"}),
    ],
)  # fmt: skip
def test_what_a_thread_cannot_do_is_said_in_its_words(
    fake: Running, fields: dict[str, Any], details: dict[str, Any]
) -> None:
    kept = {"system": "Be brief.", "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    first = fake.post("/v1/messages", {**ASKED, **kept, "messages": [QUESTION], "thread": {"type": "create"}})
    then = {**ASKED, "messages": [QUESTION]}
    then["thread"] = {"type": "continue", "previous_message_id": first.json["id"]}
    assert fake.post("/v1/messages", then | kept).status == 200
    refused = fake.post("/v1/messages", then | fields)
    assert refused.status == 400
    assert refused.json["error"]["details"] == details


def test_threads_take_bounded_memory(models: Any, script: Script) -> None:
    with running(Settings(address=SOMEWHERE), models, script.open) as server:
        threads = server.services.threads
        assert isinstance(threads, ResponseStore)
        threads._max_bytes = 3000
        ids = []
        for _ in range(4):
            asked = {
                "model": "helper",
                "max_tokens": 5,
                "messages": [{"role": "user", "content": "x" * 1000}],
            }
            ids.append(server.post("/v1/messages", asked | {"thread": {"type": "create"}}).json["id"])
        assert [key[1] for key in threads._found] == ids[2:]
        assert threads._bytes <= 3000


# ---- blocks and tools of every kind ----


def text_document(kind: str, **source: Any) -> dict[str, Any]:
    return {"type": "document", "title": "a.txt", "source": {"type": kind, **source}}


def test_blocks_that_are_no_text_never_fail_a_conversation(fake: Running, script: Script) -> None:
    encoded = base64.b64encode(b"tau = 6").decode()
    results = [{"type": "web_search_result", "title": "t", "url": "u", "encrypted_content": "e"}]
    messages = [
        {
            "role": "user",
            "content": [
                {**text_document("text", media_type="text/plain", data="pi = 3"), "context": "numbers"},
                text_document("content", content=[{"type": "text", "text": "e = 2"}]),
                text_document("base64", media_type="text/plain", data=encoded),
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
                {"type": "web_search_tool_result", "tool_use_id": "s1", "content": results},
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
    system = [
        {"type": "text", "text": "Be kind."},
        {"type": "mystery"},
        {"type": "text", "text": "Be brief."},
    ]
    reply = fake.post("/v1/messages", {**ASKED, "messages": messages, "system": system})
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
