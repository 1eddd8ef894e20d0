"""Threads and blocks of Anthropic's API, as sent by the `anthropic` package's own tool runner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from chaski.chat.requests import Generate
from chaski.server.response_store import ResponseStore
from chaski.server.settings import Settings
from tests.server.anthropic_clients import ASKED, QUESTION, prompts, weather
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.server.thinker import fake, fresh, script

__all__ = ["fake", "fresh", "script"]


@pytest.fixture(scope="module")
def client(fake: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=fake.url, api_key="any", max_retries=0) as found:
        yield found


def says(script: Script, *turns: str) -> None:
    """Set the answers of successive turns."""
    rest = iter(turns)

    class Turns:
        def __iter__(self) -> Iterator[str]:
            return iter((next(rest),))

        def __len__(self) -> int:
            return 1

    script.pieces = Turns()  # type: ignore[assignment]


def call(city: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'weather', 'arguments': {'city': city}})}</tool_call>"


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
    """It tests kept threads, and threads that the server forgets: then the client sends everything again."""
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
