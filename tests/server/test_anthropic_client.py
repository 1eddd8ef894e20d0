"""The `anthropic` package against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from chaski.chat.requests import Generate
from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.server.thinker import WEATHER, fake, fresh, script

__all__ = ["fake", "fresh", "script"]

QUESTION: Any = [{"role": "user", "content": "how do I use fewer cores?"}]
TOOL: Any = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def faked(fake: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=fake.url, api_key="any", max_retries=0) as found:
        yield found


def test_messages_whole_and_streamed_are_the_same(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "guide", "messages": QUESTION, "max_tokens": 16, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**asked)
    assert whole.content[0].text.startswith("Use `--threads")
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 16)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == "max_tokens"
    assert final.usage.cache_read_input_tokens + final.usage.input_tokens == sum(
        (whole.usage.input_tokens, whole.usage.cache_read_input_tokens)
    )


def test_stop_sequences_are_named(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model="guide",
        messages=QUESTION,
        max_tokens=16,
        stop_sequences=["--"],
        extra_body={"temperature": 0},
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "--")


def test_tokens_are_counted_exactly(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "guide", "messages": QUESTION, "system": [{"type": "text", "text": "Be kind."}]}
    count = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_tokens": 0}, "max_tokens is required and must be positive"),
        ({"messages": []}, "messages is required"),
        ({"model": ""}, "model is required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "please use base64 data instead",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]},
            "tool_use block missing required 'id' field",
        ),
    ],
)
def test_bad_requests(client: anthropic.Anthropic, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=text):
        client.messages.create(**{"model": "guide", "messages": QUESTION, "max_tokens": 5} | fields)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nobody", messages=QUESTION, max_tokens=5)


def test_a_prompt_that_does_not_fit_is_refused(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "guide", "messages": [{"role": "user", "content": "cores " * 2000}]}
    length = client.messages.count_tokens(**asked).input_tokens
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError) as refused:
            client.messages.create(**asked, max_tokens=5, stream=stream)
        error: Any = refused.value.body
        assert error["error"] == {
            "type": "invalid_request_error",
            "message": f"prompt is too long: {length} tokens > 1024 maximum; the model was made for 1024 "
            "tokens, so shorten the prompt or use a model with a longer context",
        }


def test_an_answer_ends_where_the_context_does(faked: anthropic.Anthropic, script: Script) -> None:
    asked: Any = {"model": "thinker", "messages": QUESTION, "max_tokens": 5}
    script.reason = "length"
    assert faked.messages.create(**asked).stop_reason == "max_tokens"
    script.pieces = ("a",) * script.context
    assert faked.messages.create(**asked).stop_reason == "model_context_window_exceeded"
    assert [call for call in script.asked if isinstance(call, Generate)][-1].options["shift"] is False


def test_thinking_and_calls_are_blocks(faked: anthropic.Anthropic, script: Script) -> None:
    script.pieces = (
        "<think>hm",
        "</think>Wait.",
        '<tool_call>{"name": "weather", "arguments": {"city": "Cusco"}}',
    )
    script.pieces += ("</tool_call>",)
    asked: Any = {"model": "thinker", "messages": QUESTION, "max_tokens": 50, "tools": [TOOL]}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 49}
    whole = faked.messages.create(**asked)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert whole.stop_reason == "tool_use"
    with faked.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    for streamed, block in zip(final.content, whole.content, strict=True):
        assert streamed.model_dump(exclude={"id", "parsed_output"}) == block.model_dump(
            exclude={"id", "parsed_output"}
        )
    assert final.content[2].input == {"city": "Cusco"}


def test_results_of_calls_go_back(faked: anthropic.Anthropic, script: Script) -> None:
    history: Any = [
        *QUESTION,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "x"}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "thanks"},
            ],
        },
    ]
    faked.messages.create(model="thinker", messages=history, max_tokens=5, tools=[TOOL])
    prompt = bytes([call for call in script.asked if isinstance(call, Generate)][-1].prompt).decode()
    assert '[assistant]{"city": "x"}[tool]sunny[user]thanks[assistant]' in prompt


def test_models_in_anthropics_form(client: anthropic.Anthropic, server: Running) -> None:
    """Its clients send their version; all others get OpenAI's form."""
    names = [each["id"] for each in server.get("/v1/models").json["data"]]
    page = client.models.list()
    assert ([each.id for each in page], page.first_id, page.last_id) == (names, names[0], names[-1])
    assert not page.has_more
    found = client.models.retrieve("guide")
    assert (found.type, found.id, found.display_name, found.lifecycle) == (
        "model",
        "guide",
        "guide",
        "active",
    )
    assert found.created_at.year >= 2024
    with pytest.raises(anthropic.NotFoundError, match="not found"):
        client.models.retrieve("nobody")
