"""The `openai` package against a real server: with a real model, and with one that says what a test needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from chaski.chat.requests import Generate
from chaski.errors import WorkerError
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

QUESTION: Any = [{"role": "user", "content": "how do I use fewer cores?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}"
    "[assistant]{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory, script: Script) -> Iterator[Running]:
    """A server whose model knows thinking and tools, and says what `script` says."""
    folder = tmp_path_factory.mktemp("fake")
    file = write_tiny_llama(folder / "thinker.gguf", chat_template=TEMPLATE)
    for _ in create(Store(folder), ModelName.parse("thinker"), Recipe(sources=[file])):
        pass
    with running(Settings(address=SOMEWHERE), folder, script.open) as server:
        yield server


@pytest.fixture(autouse=True)
def fresh(script: Script) -> None:
    script.pieces, script.reason, script.asked = ("hello",), "stop", []


def client_of(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with client_of(server) as found:
        yield found


@pytest.fixture(scope="module")
def faked(fake: Running) -> Iterator[openai.OpenAI]:
    with client_of(fake) as found:
        yield found


# ---- with the bundled model ----


def test_chat_whole_and_streamed_are_the_same(client: openai.OpenAI) -> None:
    asked: Any = {"model": "guide", "messages": QUESTION, "temperature": 0, "max_completion_tokens": 16}
    whole = client.chat.completions.create(**asked)
    *chunks, last, usage = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert text.startswith("Use `--threads")
    assert (chunks[0].choices[0].delta.role, chunks[1].choices[0].delta.role) == ("assistant", None)
    assert len({chunk.id for chunk in chunks}) == len({chunk.created for chunk in chunks}) == 1
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert usage.choices == []
    assert usage.usage.completion_tokens == whole.usage.completion_tokens == 16
    assert usage.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1
    assert whole.id != client.chat.completions.create(**asked).id


def test_several_answers(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "guide",
        "messages": QUESTION,
        "n": 3,
        "seed": 5,
        "max_tokens": 8,
        "temperature": 1.5,
    }
    whole = client.chat.completions.create(**asked)
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert [choice.message.content for choice in whole.choices] == streamed
    assert whole.usage.completion_tokens == 24


def test_a_prompt_that_may_not_be_cut_is_refused(client: openai.OpenAI) -> None:
    long = "cores and threads " * 900
    uncut: Any = {"model": "guide", "extra_body": {"truncate": False}}
    asks: list[Callable[[], object]] = [
        lambda: client.chat.completions.create(**uncut, messages=[{"role": "user", "content": long}]),
        lambda: client.completions.create(**uncut, prompt=long),
        lambda: client.responses.create(model="guide", input=long),
    ]
    for ask in asks:
        with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens") as refused:
            ask()
        assert (refused.value.code, refused.value.type) == (
            "context_length_exceeded",
            "invalid_request_error",
        )
    cut = client.chat.completions.create(
        model="guide", messages=[{"role": "user", "content": long}], max_tokens=1
    )
    assert cut.usage.prompt_tokens_dropped > 0


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="guide", messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=2
    ).choices[0]
    assert "".join(each.token for each in answer.logprobs.content) == answer.message.content
    assert all(len(each.top_logprobs) == 2 for each in answer.logprobs.content)


def test_a_bias(client: openai.OpenAI, server: Running) -> None:
    asked: Any = {"model": "guide", "messages": QUESTION, "temperature": 0, "max_tokens": 6}
    usual = client.chat.completions.create(**asked).choices[0].message.content
    tokens = server.post("/api/tokenize", {"model": "guide", "content": usual}).json["tokens"]
    banned = {str(token): -100 for token in tokens}
    other = client.chat.completions.create(**asked, logit_bias=banned).choices[0].message.content
    assert other != usual
    found = server.post("/api/tokenize", {"model": "guide", "content": other}).json["tokens"]
    assert not set(found[1:]) & set(tokens)
    native = {"model": "guide", "messages": QUESTION, "stream": False}
    native["options"] = {"temperature": 0, "num_predict": 6, "logit_bias": banned}
    assert server.post("/api/chat", native).json["message"]["content"] == other


def test_completions(client: openai.OpenAI) -> None:
    asked: Any = {"model": "guide", "prompt": "how do I use fewer cores?", "temperature": 0, "max_tokens": 8}
    whole = client.completions.create(**asked, logprobs=1)
    assert whole.choices[0].text.startswith("Use `--threads")
    scores = whole.choices[0].logprobs
    assert len(scores.tokens) == whole.usage.completion_tokens
    text = whole.choices[0].text
    for token, offset in zip(scores.tokens, scores.text_offset, strict=True):
        assert text[offset : offset + len(token)] == token
    chunks = client.completions.create(**asked, logprobs=1, stream=True)
    found = [chunk.choices[0].logprobs for chunk in chunks]
    assert [each for one in found if one for each in one.text_offset] == scores.text_offset
    streamed = client.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_json_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [7]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="guide",
        messages=QUESTION,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content) == {"n": 7}


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["helper:latest", "guide:latest"]
    assert client.models.retrieve("helper").owned_by == "library"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"n": 0},
        {"logit_bias": {"1": 101}},
        {"logit_bias": {"one": 1}},
        {"logit_bias": {"99999": 1}},
        {"tool_choice": "sometimes"},
        {"response_format": {"type": "xml"}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"temperature": "hot"},
        {"reasoning_effort": "huge"},
    ],
)
def test_bad_requests(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "guide", "messages": QUESTION} | fields)
    assert caught.value.body["type"] == "invalid_request_error"


# ---- with a model that says what the test needs ----


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
        assert answer.finish_reason == "tool_calls"
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


def test_the_first_page_asks_as_it_is_written(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(from openai import.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace(":11434/", f":{server.port}/"), names)
    names["client"].close()
    assert "chaski" in capsys.readouterr().out
