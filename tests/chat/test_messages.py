"""Conversations and tools of Python callers: which ones are taken, and what the errors of the others say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import chaski
from chaski.chat.answer import Answer
from chaski.chat.arguments import check_roles
from chaski.chat.events import Done, ToolCall
from chaski.chat.requests import chat_request
from chaski.errors import OptionError

ASKED: Any = {"role": "user", "content": "hello"}
CALL: Any = {"function": {"name": "add", "arguments": {"a": 1}}}


def turns(*messages: Any, **fields: Any) -> list[Any]:
    return list(chat_request(messages, None, {}, **fields)[0].messages)


@dataclass
class Said:
    role: str
    content: str


class Wrote(Struct):
    role: str
    content: str


class Second:
    """As a message of Pydantic 2, such as one of the package `openai`."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, exclude_none: bool) -> dict[str, Any]:
        assert exclude_none
        return {name: value for name, value in self.fields.items() if value is not None}


class First:
    """As a message of Pydantic 1."""

    __fields__ = ("role", "content")

    def dict(self, exclude_none: bool) -> dict[str, Any]:
        return ASKED


@pytest.mark.parametrize(
    "message", [ASKED, Said("user", "hello"), Wrote("user", "hello"), Second(**ASKED, name=None), First()]
)
def test_messages_of_other_libraries(message: Any) -> None:
    assert turns(message) == [ASKED]


@pytest.mark.parametrize("call", [CALL, {"name": "add", "arguments": {"a": 1}}, ToolCall("add", {"a": 1})])
def test_tool_calls(call: Any) -> None:
    _, calls, _ = turns(
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    )
    assert calls["tool_calls"][0]["function"]["name"] == "add"
    assert calls["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_an_answer_is_a_message() -> None:
    done = Done(
        reason="stop",
        prompt_tokens=1,
        cached_tokens=0,
        generated_tokens=1,
        dropped_tokens=0,
        load_seconds=0,
        prefill_seconds=0,
        decode_seconds=0,
    )
    plain = Answer("hi", (), (), done)
    assert plain.message == {"role": "assistant", "content": "hi"}
    assert turns(ASKED, plain, ASKED) == [ASKED, plain.message, ASKED]
    calling = Answer("", (), (), done, thinking="hm", tool_calls=(ToolCall("add", {"a": 1}),))
    assert calling.message == {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [CALL]}
    assert turns(ASKED, calling)[1] == calling.message


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": ""}]},
        {"role": "user", "images": [b"bytes"]},
        {"role": "user", "content": None, "images": b"bytes"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "thinking": "hm"},
    ],
)
def test_messages_that_need_no_text(message: Any) -> None:
    assert len(turns(message)) == 1


def test_images_of_the_call_are_the_content_of_the_last_message() -> None:
    assert turns({"role": "user"}, images=b"bytes")[0]["images"] == [0]
    with pytest.raises(OptionError, match=r"message 0 .* has no content"):
        turns({"role": "user"}, ASKED, images=b"bytes")


def test_parts_of_text_are_a_text() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert turns({"role": "user", "content": parts}) == [{"role": "user", "content": "a b"}]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "user"}, r"message 0 \(role 'user'\) has no content; give it a text"),
        ({"role": "user", "content": None}, "message 0 .* has no content"),
        ({"role": "user", "content": []}, "message 0 .* has no content"),
        ({"role": "assistant", "content": None}, "message 0 .* has no content"),
        ({"role": "assistant", "tool_calls": []}, "message 0 .* has no content"),
        ({"role": "user", "tool_calls": [CALL]}, "message 0 .* has no content"),
        ({"role": "tool", "content": None}, "message 0 .* has no content"),
        ({"role": "user", "content": 3}, "content of message 0 is 3; it must be a text"),
        ({"role": "user", "content": b"hello"}, "content of message 0 is b'hello'"),
        ({"role": "user", "content": {"text": "a"}}, "content of message 0 is "),
        ({"role": "user", "content": ["hello"]}, "message 0: a part of its content is 'hello'; it must be"),
        ({"role": "user", "content": [{"type": "text"}]}, "message 0: a part of its content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "message 0: .* in the field images"),
        ({"role": "user", "content": [{"type": "image"}]}, "1 parts of type image, .* 0 images"),
        ({"role": "user", "content": "a", "images": 3}, "the images are 3"),
        ({"content": "hello"}, "message 0 has no role"),
        ({"role": None, "content": "hello"}, "message 0 has no role"),
        (("user", "hello"), r"message 0 is \('user', 'hello'\); the conversation must be a list of messages"),
        ("hello", "message 0 is 'hello'"),
        (None, "message 0 is None"),
        (Said, "message 0 is <class"),
        ({"role": "assistant", "content": "", "thinking": 3}, "thinking of message 0 is 3"),
        ({"role": "assistant", "tool_calls": "add"}, "tool_calls of message 0 are 'add'"),
        ({"role": "assistant", "tool_calls": ["add"]}, "tool call 0 of message 0 is 'add'; it must be like"),
        ({"role": "assistant", "tool_calls": [{"function": "add"}]}, "tool call 0 of message 0"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "tool call 0 of message 0"),
    ],
)
def test_messages_that_are_refused(message: Any, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        turns(message)


@pytest.mark.parametrize("messages", [[], (), iter(())])
def test_an_empty_conversation(messages: Any) -> None:
    with pytest.raises(OptionError, match="the conversation is empty; it must be a list of messages such as"):
        chat_request(messages, None, {})


@pytest.mark.parametrize("messages", ["hello", b"hello", ASKED, None, 3])
def test_what_is_no_conversation(messages: Any) -> None:
    with pytest.raises(OptionError, match=r"the conversation is .* must be a list of messages"):
        chat_request(messages, None, {})


@pytest.mark.parametrize(
    ("role", "advice"),
    [
        ("User", "did you mean user?"),
        ("human", "did you mean user, which LangChain calls human?"),
        ("asistant", "did you mean assistant?"),
        ("model", "did you mean assistant, which Gemini's API calls model?"),
        ("zzz", "known: system, user, assistant, tool, developer"),
    ],
)
def test_a_role_that_is_not_known(role: str, advice: str) -> None:
    with pytest.raises(OptionError) as refused:
        check_roles([ASKED, {"role": role, "content": "a"}], lambda role: False)
    assert str(refused.value) == f"message 1 has the unknown role {role!r}; {advice}"


@pytest.mark.parametrize("tools", ["add", CALL, 3, print, [int], ["add"], [{"function": {}}]])
def test_tools_that_are_refused(tools: Any) -> None:
    with pytest.raises(OptionError, match=r"tools? .* \{\"type\": \"function\""):
        chat_request([ASKED], tools, {})


def test_an_error_names_the_conversation(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama, threads=1) as model:
        with pytest.raises(OptionError, match="conversation 1: the conversation is empty"):
            model.chat_many([[ASKED], []])
        with pytest.raises(OptionError, match=r"conversation 0: message 0 .* has no content"):
            model.chat_many([[{"role": "user"}]])
        with pytest.raises(OptionError, match=r"prompt 1: the prompt is 1.5"):
            model.generate_many(["a", 1.5])  # type: ignore[list-item]
