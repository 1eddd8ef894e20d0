"""OpenAI's Responses API with the `openai` package: a real model, and one with set answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from chaski.chat.requests import Generate
from chaski.errors import ResponseNotFoundError, WorkerError
from chaski.server.dialects.responses import read_response
from chaski.server.response_store import ResponseStore, StoredResponse
from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.server.thinker import WEATHER, client_of, fake, faked, fresh, script

__all__ = ["fake", "faked", "fresh", "script"]

QUESTION = "how do I use fewer cores?"
ASKED: Any = {"model": "guide", "input": QUESTION, "temperature": 0, "max_output_tokens": 16}
TOOL: Any = {"type": "function", **WEATHER["function"], "strict": False}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Cusco"}}</tool_call>'


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with client_of(server) as found:
        yield found


def prompt_of(script: Script) -> str:
    return bytes([call for call in script.asked if isinstance(call, Generate)][-1].prompt).decode()


# ---- with the bundled model ----


def test_whole_and_streamed_are_the_same(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASKED)
    assert whole.output_text.startswith("Use `--threads")
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (whole.usage.output_tokens, whole.temperature, whole.tools) == (16, 0, [])
    with client.responses.stream(**ASKED) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == whole.output_text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.usage.input_tokens_details.cached_tokens == whole.usage.input_tokens - 1


def test_a_response_goes_on_from_another(client: openai.OpenAI) -> None:
    first = client.responses.create(**ASKED, instructions="Be kind.")
    second = client.responses.create(**ASKED | {"input": "and more?"}, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    turns: Any = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "and more?"},
    ]
    whole = client.responses.create(**ASKED | {"input": turns})
    assert whole.output_text == second.output_text
    assert whole.usage.input_tokens == second.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    for forgotten in (first.id, client.responses.create(**ASKED, store=False).id):
        with pytest.raises(openai.NotFoundError, match="send the whole conversation"):
            client.responses.create(**ASKED, previous_response_id=forgotten)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(forgotten)


def test_a_schema(client: openai.OpenAI) -> None:
    class Number(pydantic.BaseModel):
        n: int = pydantic.Field(ge=7, le=7)

    found = client.responses.parse(model="guide", input=QUESTION, text_format=Number, temperature=0)
    assert found.output_parsed == Number(n=7)
    assert found.status == "completed"


def test_what_does_not_fit_is_cut_only_where_that_is_asked_for(client: openai.OpenAI) -> None:
    long: Any = [
        {"role": "user", "content": "cores and threads " * 200},
        {"role": "user", "content": QUESTION},
    ]
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.responses.create(**ASKED | {"input": long * 2})
    *_, failed = client.responses.create(**ASKED | {"input": long * 2}, stream=True)
    assert (failed.type, failed.response.error.code) == ("response.failed", "context_length_exceeded")
    cut = client.responses.create(**ASKED | {"input": long * 2}, truncation="auto")
    assert cut.usage.input_tokens <= 1024


def test_logprobs(client: openai.OpenAI) -> None:
    asked = ASKED | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = client.responses.create(**asked).output[0].content[0]
    assert "".join(each.token for each in part.logprobs) == part.text
    assert all(len(each.top_logprobs) == 2 for each in part.logprobs)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"input": None}, "input is required"),
        ({"input": [{"type": "compaction_trigger"}]}, "compaction is not supported"),
        ({"input": [{"role": "ghost", "content": "x"}]}, "role 'ghost'"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "%"}]}]}, "not base64"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "No tool call found"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "call_id"),
        ({"tool_choice": {"type": "web_search"}, "tools": [{"type": "web_search"}]}, "runs no tools"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "no such tool"),
        ({"tools": [{"type": "function"}]}, "a tool has no name"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema is missing"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "some"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ],
)
def test_what_cannot_be_is_refused(server: Running, fields: dict[str, Any], text: str) -> None:
    reply = server.post("/v1/responses", ASKED | fields)
    assert reply.status == 400
    assert text in reply.json["error"]["message"]


# ---- with a model that says what the test needs ----


def test_thinking_text_and_calls_are_items(faked: openai.OpenAI, script: Script) -> None:
    script.pieces = ("<think>", "h", "m", "</think>", "Wait. ", CALL)
    asked: Any = {"model": "thinker", "input": QUESTION, "tools": [TOOL]}
    whole = faked.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    assert (whole.output[0].summary[0].text, whole.output_text) == ("hm", "Wait.")
    assert json.loads(whole.output[2].arguments) == {"city": "Cusco"}
    assert whole.usage.output_tokens_details.reasoning_tokens == 3
    with faked.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    names = [event.type.removeprefix("response.") for event in events]
    assert names == [
        *("created", "in_progress"),
        *("output_item.added", "reasoning_summary_part.added"),
        *("reasoning_summary_text.delta", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    for streamed, item in zip(final.output, whole.output, strict=True):
        unlike = {"id", "call_id", "parsed_arguments"}
        assert streamed.model_dump(exclude=unlike)["type"] == item.type
        assert item.status == "completed"
    indices = [event.output_index for event in events if hasattr(event, "output_index")]
    assert indices == sorted(indices)
    assert set(indices) == {0, 1, 2}


def test_results_of_calls_go_back(faked: openai.OpenAI, script: Script) -> None:
    script.pieces = ("<think>hm</think>", CALL)
    asked: Any = {"model": "thinker", "tools": [TOOL]}
    first = faked.responses.create(**asked, input=QUESTION, instructions="Be brief.")
    (call,) = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    faked.responses.create(**asked, input=[result], previous_response_id=first.id)
    remembered = prompt_of(script)
    history: Any = [{"role": "user", "content": QUESTION}, *(item.to_dict() for item in first.output), result]
    faked.responses.create(**asked, input=history, store=False)
    assert prompt_of(script) == remembered
    assert f'[user]{QUESTION}[assistant]{{"city": "Cusco"}}[tool]sunny[assistant]' in remembered


def test_choices_of_tools(faked: openai.OpenAI, script: Script) -> None:
    script.pieces = ('{"name":"maps.route",', '"arguments":{}}')
    route: Any = {"type": "function", "name": "route", "parameters": {"type": "object"}, "strict": False}
    asked: Any = {
        "model": "thinker",
        "input": QUESTION,
        "tools": [TOOL, {"type": "namespace", "name": "maps", "tools": [route]}],
        "reasoning": {"effort": "none"},
    }
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "maps.route"}],
    }
    for choice in ({"type": "function", "name": "maps.route"}, allowed):
        (call,) = faked.responses.create(**asked, tool_choice=choice).output
        assert (call.name, call.namespace) == ("route", "maps")
        demanded = [call for call in script.asked if isinstance(call, Generate)][-1].options["format"]
        assert [each["properties"]["name"]["const"] for each in demanded["anyOf"]] == ["maps.route"]
    script.pieces = (CALL, CALL)
    assert len(faked.responses.create(**asked, parallel_tool_calls=False).output) == 1
    assert len(faked.responses.create(**asked).output) == 2
    assert faked.responses.create(**asked, tool_choice="none").output[0].type == "message"


def test_an_error_in_the_stream_is_the_end_of_the_response(faked: openai.OpenAI, script: Script) -> None:
    script.pieces = ("begun", WorkerError("it died"))
    *_, done, last = faked.responses.create(model="thinker", input=QUESTION, stream=True)
    assert (done.type, done.item.status) == ("response.output_item.done", "incomplete")
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert "it died" in last.response.error.message
    script.pieces = (WorkerError("it died"),)
    with pytest.raises(openai.InternalServerError, match="it died"):
        faked.responses.create(model="thinker", input=QUESTION, stream=True)


# ---- parts by themselves ----


def test_what_was_said_in_one_turn_is_one_message() -> None:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "Wait."}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "b", "name": "g", "namespace": "n", "arguments": ""},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "ok"}]},
        {"role": "assistant", "content": "So."},
        {"role": "developer", "content": "Hurry."},
    ]
    said, result, so, hurry = read_response({"model": "m", "input": items}).turns
    assert (said["thinking"], said["content"]) == ("hm", "Wait.")
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["f", "n.g"]
    assert result == {"role": "tool", "content": "ok", "tool_call_id": "b", "tool_name": "n.g"}
    assert so == {"role": "assistant", "content": "So."}
    assert hurry == {"role": "system", "content": "Hurry."}


def test_not_more_is_remembered_than_fits() -> None:
    def response(name: str, text: str = "") -> StoredResponse:
        return StoredResponse({"id": name}, [{"role": "user", "content": text}])

    kept = ResponseStore(max_bytes=1000, max_count=3)
    for name in "abcd":
        kept.add("me", response(name))
    with pytest.raises(ResponseNotFoundError):
        kept.get("me", "a")
    assert kept.get("me", "b").fields == {"id": "b"}
    with pytest.raises(ResponseNotFoundError):
        kept.get("you", "b")
    kept.add("me", response("large", "x" * 850))
    with pytest.raises(ResponseNotFoundError):
        kept.get("me", "c")
    kept.add("me", response("larger", "x" * 2000))
    for name in ("b", "d", "large", "larger"):
        with pytest.raises(ResponseNotFoundError):
            kept.get("me", name)


def test_an_empty_list_leaves_the_instructions_alone() -> None:
    found = read_response({"model": "m", "input": [], "instructions": "Say hello."})
    assert found.chat.messages[0] == {"role": "system", "content": "Say hello."}
    assert read_response({"model": "m", "input": []}).chat.messages == [{"role": "user", "content": ""}]
