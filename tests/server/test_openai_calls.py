"""The `openai` package against a model with set answers: thoughts, calls, errors."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from chaski.chat.requests import Generate
from chaski.errors import WorkerError
from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.server.thinker import WEATHER, fake, faked, fresh, script

__all__ = ["fake", "faked", "fresh", "script"]

QUESTION: Any = [{"role": "user", "content": "how do I use fewer cores?"}]


def test_thinking_and_calls_are_told_apart(faked: openai.OpenAI, script: Script) -> None:
    script.pieces = (
        "<thi",
        "nk>hm</think>",
        "\n\nWait. <tool_",
        'call>{"name": "weather", ',
        '"arguments": {"city": "Cu',
    )
    script.pieces += ('sco"}}</tool_call>',)
    asked: Any = {"model": "thinker", "messages": QUESTION, "tools": [WEATHER]}
    message = faked.chat.completions.create(**asked).choices[0].message
    assert message.reasoning == "hm"
    assert message.content.strip() == "Wait."
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Cusco"})
    chunks = list(faked.chat.completions.create(**asked, stream=True))
    calls = [chunk.choices[0].delta.tool_calls[0] for chunk in chunks if chunk.choices[0].delta.tool_calls]
    assert [(call.index, call.function.arguments) for call in calls] == [(0, '{"city": "Cusco"}')]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_one_call_at_most(faked: openai.OpenAI, script: Script) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "%s"}}</tool_call>'
    script.pieces = (call % "Cusco" + call % "Lima", "\n", call % "Quito")
    asked: Any = {"model": "thinker", "messages": QUESTION, "tools": [WEATHER]}
    for is_parallel, count in ((True, 3), (False, 1)):
        answer = faked.chat.completions.create(**asked, parallel_tool_calls=is_parallel).choices[0]
        assert len(answer.message.tool_calls) == count
        assert "Cusco" in answer.message.tool_calls[0].function.arguments
        stream = faked.chat.completions.create(**asked, parallel_tool_calls=is_parallel, stream=True)
        assert sum(len(chunk.choices[0].delta.tool_calls or ()) for chunk in stream) == count


def test_a_demanded_call(faked: openai.OpenAI, script: Script) -> None:
    script.pieces = ('{"name":"weather",', '"arguments":{"city":"Quito"}}')
    named: Any = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        asked: Any = {"model": "thinker", "messages": QUESTION, "tools": [WEATHER], "tool_choice": choice}
        answer = faked.chat.completions.create(**asked, reasoning_effort="none").choices[0]
        chunks = list(faked.chat.completions.create(**asked, reasoning_effort="none", stream=True))
        ends = {answer.finish_reason, chunks[-1].choices[0].finish_reason}
        assert ends == {"stop" if choice is named else "tool_calls"}  # as in OpenAI's API
        assert json.loads(answer.message.tool_calls[0].function.arguments) == {"city": "Quito"}
    demanded = [call for call in script.asked if isinstance(call, Generate)][-1].options["format"]
    assert demanded["anyOf"][0]["properties"]["name"] == {"const": "weather"}


def test_no_call_is_allowed(faked: openai.OpenAI, script: Script) -> None:
    script.pieces = ('<tool_call>{"name": "weather", "arguments": {}}</tool_call>',)
    answer = faked.chat.completions.create(
        model="thinker", messages=QUESTION, tools=[WEATHER], tool_choice="none"
    ).choices[0]
    assert (answer.message.tool_calls, answer.finish_reason) == (None, "stop")
    with pytest.raises(openai.BadRequestError, match="no such tool"):
        faked.chat.completions.create(
            model="thinker",
            messages=QUESTION,
            tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "other"}},
        )


def test_results_of_calls_go_back(faked: openai.OpenAI, script: Script) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Cusco"}'}}
    history: Any = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    faked.chat.completions.create(model="thinker", messages=history, tools=[WEATHER])
    prompt = bytes([call for call in script.asked if isinstance(call, Generate)][-1].prompt).decode()
    assert '[assistant]{"city": "Cusco"}[tool]sunny[assistant]' in prompt


def test_an_error_in_the_stream_is_seen_and_the_stream_ends(faked: openai.OpenAI, script: Script) -> None:
    script.pieces = ("begun", WorkerError("it died"))
    stream = faked.chat.completions.create(model="thinker", messages=QUESTION, stream=True)
    said: list[str | None] = []
    with pytest.raises(openai.APIError, match="unexpectedly stopped") as caught:
        said.extend(chunk.choices[0].delta.content for chunk in stream)
    assert "it died" in caught.value.message
    assert said == ["begun"]


def test_an_error_before_the_first_word_has_its_status(fake: Running, script: Script) -> None:
    script.pieces = (WorkerError("it died"),)
    asked = {"model": "thinker", "messages": QUESTION, "stream": True}
    for path in ("/api/chat", "/v1/chat/completions"):
        assert fake.post(path, asked).status == 500


def test_the_ends_of_broken_streams(fake: Running, script: Script) -> None:
    script.pieces = ("begun", WorkerError("it died"))
    asked = {"model": "thinker", "messages": QUESTION, "stream": True, "max_tokens": 5}
    native = fake.post("/api/chat", asked)
    assert native.status == 200
    assert "it died" in native.lines[-1]["error"]
    assert not any(line.get("done") for line in native.lines)
    assert fake.post("/v1/chat/completions", asked).body.endswith(b"data: [DONE]\n\n")
    last = fake.post("/v1/messages", asked).body.strip().split(b"\n\n")[-1]
    assert last.startswith(b"event: error\n")
    assert b"it died" in last
