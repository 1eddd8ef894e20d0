"""Dialects alone, without server and model: bodies to requests, events to fields."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.chat.events import Done, Text, Thinking, ToolCall
from chaski.chat.options import checked_options
from chaski.errors import OptionError, UnsupportedError
from chaski.server.answering.events import Delta, Finish
from chaski.server.dialects import anthropic, ollama, openai
from chaski.server.dialects.responses.requests import read_response
from chaski.server.http.problems import problem_of

CALL = ToolCall("weather", {"z": 1, "a": {"y": 2}})
DONE = Done(
    reason="length",
    prompt_tokens=10,
    cached_tokens=4,
    generated_tokens=3,
    dropped_tokens=0,
    load_seconds=9.0,
    prefill_seconds=0.5,
    decode_seconds=0.25,
)


def finish(**fields: Any) -> Finish:
    usual = {
        "done": DONE,
        "called": False,
        "context": 64,
        "dropped": 0,
        "load_seconds": 0.0,
        "total_seconds": 1.5,
    }
    return Finish(**usual | fields)


# ---- the native one ----


def test_native_lines() -> None:
    line = ollama.chat_fields("m", Delta([Thinking("hm"), Text("so"), CALL]))
    assert line["message"]["thinking"] == "hm"
    assert line["message"]["content"] == "so"
    (call,) = line["message"]["tool_calls"]
    assert call["function"] == {"index": 0, "name": "weather", "arguments": CALL.arguments}
    assert list(call["function"]["arguments"]) == ["z", "a"]  # in the model's order
    assert len(call["id"]) == len("call_") + 8
    assert line["done"] is False
    assert ollama.generate_fields("m", Delta([Text("so")]))["response"] == "so"


def test_native_ends() -> None:
    end = ollama.chat_fields("m", finish())
    assert end["message"] == {"role": "assistant", "content": ""}
    assert (end["done"], end["done_reason"], end["total_duration"]) == (True, "length", 1_500_000_000)
    assert (end["prompt_eval_count"], end["prompt_cached_count"], end["eval_duration"]) == (
        10,
        4,
        250_000_000,
    )
    assert end.keys().isdisjoint({"load_duration", "truncated", "prompt_dropped_count", "context"})
    cut = ollama.generate_fields("m", finish(dropped=7, token_ids=[1, 2]))
    assert (cut["truncated"], cut["prompt_dropped_count"], cut["context"]) == (True, 7, [1, 2])


def test_times_are_gos() -> None:
    assert ollama.timestamp(0) == "1970-01-01T00:00:00.000000000Z"
    assert len(ollama.timestamp()) == len("2026-01-01T00:00:00.000000000Z")


@pytest.mark.parametrize("think", [True, False, "low", "medium", "high", "max", None])
def test_thinking_is_asked_for(think: object) -> None:
    assert ollama.read_chat({"model": "m", "think": think}).think is think


@pytest.mark.parametrize("think", ["lots", 3, []])
def test_thinking_is_no_number(think: object) -> None:
    with pytest.raises(OptionError, match="think"):
        ollama.read_chat({"model": "m", "think": think})


def test_messages_keep_what_templates_need() -> None:
    call = {"function": {"name": "f", "arguments": {"b": 1, "a": 2}}}
    turns = [
        {"role": "ASSISTANT", "content": None, "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "ok", "tool_name": "f", "unknown": 1},
    ]
    first, second = ollama.read_chat({"model": "m", "messages": turns}).messages
    assert first["role"] == "assistant"
    assert list(first["tool_calls"][0]["function"]["arguments"]) == ["b", "a"]
    assert second == {"role": "tool", "content": "ok", "tool_name": "f"}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "x"},
        {"messages": [3]},
        {"messages": [{"role": "ghost"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user"}] * 20_001},
        {"options": []},
        {"stream": "yes"},
        {"tools": {}},
        {"model": 4},
    ],
)
def test_wrong_types_are_named(body: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        ollama.read_chat({"model": "m"} | body)


def test_options_of_ollama() -> None:
    assert not checked_options(
        {"special": True, "cache_salt": "hers", "format": "json"}
    ).generate  # ours, not theirs
    given = {"seed": -1, "repeat_last_n": -1, "num_predict": 5.9, "num_ctx": 99, "nobody": 1, "top_k": None}
    found = checked_options(given)
    assert found.generate == {"seed": None, "repeat_last_n": None, "num_predict": 5}
    assert (found.context, found.threads) == (99, None)
    # In Ollama every negative number of tokens but -2 is no limit.
    limits = {"num_predict": -2}, {"num_predict": -1}, {"num_predict": -5}
    assert [checked_options(each).generate["num_predict"] for each in limits] == [-2, -1, -1]
    for wrong in ({"stop": 5}, {"stop": [5]}, {"stop": ["x"] * 65}, {"seed": True}, {"use_mmap": 1}):
        with pytest.raises(OptionError, match="option"):
            checked_options(wrong)


# ---- OpenAI's ----


def test_openai_reads_what_ollama_does_not() -> None:
    wish = openai.read_chat(
        {
            "model": "m",
            "messages": [{"role": "developer", "content": [{"type": "text", "text": "hi"}]}],
            "max_tokens": 9,
            "max_completion_tokens": 5,
            "num_ctx": 77,
            "options": {"min_p": 0.5},
            "keep_alive": "1m",
            "response_format": {"type": "json_object"},
            "reasoning_effort": "minimal",
        }
    )
    assert wish.messages == [{"role": "system", "content": "hi"}]
    options = {"num_predict": 5, "num_ctx": 77, "min_p": 0.5, "temperature": 1.0, "top_p": 1.0}
    assert wish.options == options
    assert (wish.keep_alive, wish.format, wish.think, wish.stream) == (60, "json", "minimal", False)


def test_openai_chunks() -> None:
    chunks = openai.Chunks("m")
    first, second, third = chunks.delta(0, Delta([Thinking("hm"), Text("so"), CALL]))
    deltas = [each["choices"][0]["delta"] for each in (first, second, third)]
    assert deltas[0] == {"role": "assistant", "reasoning": "hm"}
    assert deltas[1] == {"content": "so"}
    assert deltas[2]["tool_calls"][0]["function"]["arguments"] == '{"z": 1, "a": {"y": 2}}'
    assert chunks.delta(0, Delta([CALL]))[0]["choices"][0]["delta"]["tool_calls"][0]["index"] == 1
    (ended,) = chunks.finish(0, finish())
    last = ended["choices"][0]
    assert (last["delta"], last["finish_reason"]) == ({}, "length")
    usage = chunks.usage([finish(dropped=5)])["usage"]
    assert (usage["prompt_tokens_details"], usage["prompt_tokens_dropped"]) == ({"cached_tokens": 4}, 5)


@pytest.mark.parametrize("arguments", ["{", "[]", '"x"', "[" * 9000])
def test_broken_arguments_of_a_history_stay_text(arguments: str) -> None:
    """A model wrote them, so the conversation must continue."""
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    turn = {"role": "assistant", "tool_calls": [call]}
    body = {"model": "m", "messages": [turn]}
    for read in (openai.read_chat(body), ollama.read_chat(body)):
        assert read.messages[0]["tool_calls"] == [call]
    item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
    assert read_response({"model": "m", "input": [item]}).turns[0]["tool_calls"] == [call]
    block = {"type": "tool_use", "id": "1", "name": "f", "input": arguments}
    asked = {"model": "m", "max_tokens": 1, "messages": [{"role": "assistant", "content": [block]}]}
    assert anthropic.read_messages(asked).messages[0]["tool_calls"] == [call]


# ---- Anthropic's ----


def test_anthropic_blocks() -> None:
    blocks = anthropic.Blocks("m")
    events = [*blocks.delta(Delta([Thinking("h"), Thinking("m"), Text("so"), CALL, Text("on")]))]
    events += blocks.finish(finish())
    names = [name.removeprefix("content_block_") for name, _ in events]
    assert names == [
        *("start", "delta", "delta", "stop"),
        *("start", "delta", "stop"),
        *("start", "delta", "stop"),
        *("start", "delta", "stop"),
        *("message_delta", "message_stop"),
    ]
    assert [data["index"] for name, data in events if name == "content_block_start"] == [0, 1, 2, 3]
    assert events[-2][1]["usage"] == {
        "input_tokens": 6,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 3,
    }


# ---- errors ----


def test_errors_say_no_folders() -> None:
    found = problem_of(
        UnsupportedError("/home/me/My Models/x/sha256-1: in /var/a.gguf, see http://a.org/b/c")
    )
    assert "/home" not in found.message
    assert "/var" not in found.message
    assert "http://a.org/b/c" in found.message


def test_defects_say_nothing() -> None:
    found = problem_of(ValueError("secret"))
    assert (found.status, found.message) == (500, "internal server error")


@pytest.mark.parametrize("fields", [{}, {"continue_final_message": True, "add_generation_prompt": False}])
def test_an_answer_may_have_begun(fields: dict[str, Any]) -> None:
    begun = {"role": "assistant", "content": "It is"}
    assert openai.read_chat({"model": "m", "messages": [begun], **fields}).messages == [begun]
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    if fields:
        with pytest.raises(OptionError, match="the last message is not the assistant's"):
            openai.read_chat(asked)
        with pytest.raises(OptionError, match="add_generation_prompt is false"):
            openai.read_chat({**asked, "continue_final_message": False})
