"""The `openai` package against a real server: with a real model, and with one with set answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.running import Running
from tests.server.thinker import client_of

QUESTION: Any = [{"role": "user", "content": "how do I use fewer cores?"}]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with client_of(server) as found:
        yield found


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


def test_the_first_page_asks_as_it_is_written(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(from openai import.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace(":11434/", f":{server.port}/"), names)
    names["client"].close()
    assert "chaski" in capsys.readouterr().out
