"""Anthropic's `cache_control`: places of marks, held tokens, usage, and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.chat.events import Done
from chaski.chat.marks import Mark, common_length
from chaski.chat.requests import Chat
from chaski.errors import OptionError
from chaski.server.dialects import anthropic
from chaski.server.dialects.anthropic.marks import created_tokens, without_marks
from tests.server.running import Running

SHORT: Mapping[str, Any] = {"cache_control": {"type": "ephemeral"}}
LONG: Mapping[str, Any] = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(said: str, mark: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": said, **(mark or {})}


def tool(name: str, mark: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}, **(mark or {})}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def read(*messages: Any, **more: Any) -> Any:
    return anthropic.read_messages({"model": "m", "max_tokens": 1, "messages": list(messages), **more})


def test_marks_have_places_in_messages() -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}, **SHORT}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [text("ab", SHORT)]}
    request = read(
        user(text("one", SHORT), text("two")),
        {"role": "assistant", "content": [text("so"), call]},
        user(result, text("x")),
        system=[text("A", LONG), text("BC")],
    )
    assert [each["content"] for each in request.messages] == ["A\n\nBC", "one\ntwo", "so", "ab", "x"]
    assert request.marks == (Mark(0, 1, 3600), Mark(1, 3, 300), Mark(3, 0, 300), Mark(3, 2, 300))


def test_marks_of_tools_and_of_the_whole() -> None:
    request = read(user(text("hello")), tools=[tool("f"), tool("g", LONG)], system="S", **SHORT)
    assert request.marks == (Mark(1, 0, 3600), Mark(1, 5, 300))
    assert read(user(text("hello", LONG)), **LONG).marks == (Mark(0, 5, 3600), Mark(0, 5, 3600))
    assert read(user(text("hello"))).marks == ()
    assert read(user(text("hello", {"cache_control": None}))).marks == ()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"system": [text(str(n), SHORT) for n in range(5)]}, "A maximum of 4 blocks .* Found 5"),
        ({"system": [text(str(n), SHORT) for n in range(4)], **SHORT}, "A maximum of 4 blocks .* Found 5"),
        (
            {"system": [text("a", SHORT), text("b", LONG)]},
            r"system\[1\].cache_control.ttl: a ttl='1h' .* must not come after a ttl='5m'",
        ),
        ({"tools": [tool("f", SHORT)], "system": [text("b", LONG)]}, r"system\[0\].* must not come after"),
        ({"messages": [user(text("a", SHORT)), user(text("b", LONG))]}, r"messages\[1\].content\[0\]"),
        ({"messages": [user(text("a", LONG))], **SHORT}, "Top-level cache_control has ttl='5m'"),
        ({"system": [text("a", {"cache_control": {"type": "forever"}})]}, "must be ephemeral"),
        ({"system": [text("a", {"cache_control": {"type": "ephemeral", "ttl": "2h"}})]}, "5m or 1h"),
        ({"system": [text("a", {"cache_control": "ephemeral"})]}, "must be an object"),
        ({"system": [text("a", {"cache_control": {"type": "ephemeral", "ttl": 5}})]}, "must be a string"),
    ],
)
def test_bad_marks_are_refused(body: Mapping[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        anthropic.read_messages({"model": "m", "max_tokens": 1, "messages": [user(text("hi"))], **body})


def test_four_marks_with_the_long_ones_first_are_taken() -> None:
    found = read(user(text("a", SHORT)), tools=[tool("f", LONG)], system=[text("a", LONG), text("b", SHORT)])
    assert [mark.seconds for mark in sorted(found.marks, key=lambda mark: -mark.seconds)] == [
        3600,
        3600,
        300,
        300,
    ]


def test_threads_keep_no_marks() -> None:
    assert without_marks(user(text("a", LONG), "odd")) == user(text("a"), "odd")
    assert without_marks({"role": "user", "content": "a"}) == {"role": "user", "content": "a"}
    body = {"thread": {"type": "create"}, "messages": [user(text("a", LONG))], "system": [text("s", LONG)]}
    kept = anthropic.kept_thread(body, "id", [])
    assert kept.turns[0] == user(text("a"))
    assert kept.fields["system"] == body["system"]


@pytest.mark.parametrize(
    ("cached", "held", "short", "long"),
    [
        (0, (), 0, 0),
        (0, ((80, 300),), 80, 0),
        (0, ((60, 3600), (80, 300)), 20, 60),
        (40, ((60, 3600), (80, 300)), 20, 20),
        (70, ((60, 3600), (80, 300)), 10, 0),
        (90, ((60, 3600), (80, 300)), 0, 0),
        (0, ((80, 3600), (60, 300)), 0, 80),
    ],
)
def test_created_tokens(cached: int, held: Any, short: int, long: int) -> None:
    done = Done(
        reason="stop",
        prompt_tokens=100,
        cached_tokens=cached,
        held_tokens=held,
        generated_tokens=1,
        dropped_tokens=0,
        load_seconds=0,
        prefill_seconds=0,
        decode_seconds=0,
    )
    found = created_tokens(done)
    assert found == {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}


@pytest.fixture(scope="module")
def guide() -> Iterator[chaski.LLM]:
    with chaski.load("guide", context=512) as model:
        yield model


CONVERSATION = (
    {"role": "system", "content": "You are kind. You are brief."},
    {"role": "user", "content": "Which cores are used, and why?"},
    {"role": "assistant", "content": "All of them."},
    {"role": "user", "content": "And now?"},
)


def held(guide: chaski.LLM, *marks: Mark) -> list[int]:
    prepared = guide.prompts.prepare(Chat(CONVERSATION, (), {}, marks=marks))
    assert [seconds for _, seconds in prepared.holds] == [mark.seconds for mark in marks]
    return [length for length, _ in prepared.holds]


def test_a_mark_is_a_number_of_tokens_of_the_prompt(guide: chaski.LLM) -> None:
    prompt = guide.prompts.prepare(Chat(CONVERSATION, (), {})).prompt.tokens
    places = [Mark(0, 13, 300), Mark(0, 28, 300), Mark(1, 30, 300), Mark(3, 8, 300), Mark(9, 0, 3600)]
    lengths = held(guide, *places)
    ends = ["You are kind.", "You are brief.", "and why?", "And now?"]
    for length, end in zip(lengths, ends, strict=False):
        assert guide.detokenize(prompt[:length]).endswith(end)
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(prompt)
    assert held(guide, Mark(1, 0, 300))[0] < lengths[2]


def test_common_lengths() -> None:
    assert common_length("abc", "abd") == 2
    assert common_length([1, 2], [1, 2, 3]) == 2
    assert common_length("", "a") == 0
    assert common_length("x", "a") == 0


def test_usage_of_a_server_over_two_requests(server: Running, tmp_path: Path) -> None:
    words = "Cores and threads and memory, said the guide. " * 8
    body = {
        "model": "guide",
        "max_tokens": 1,
        "system": [text(words, LONG)],
        "messages": [user(text("Which one?", SHORT), text("Say it."))],
    }
    first = server.post("/v1/messages", body).json["usage"]
    second = server.post("/v1/messages", body).json["usage"]
    for usage in (first, second):
        made = usage["cache_creation"]
        assert usage["cache_creation_input_tokens"] == sum(made.values())
    total = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert sum(first[name] for name in total) == sum(second[name] for name in total)
    assert first["cache_creation"]["ephemeral_1h_input_tokens"] > 50
    assert 0 < first["cache_creation"]["ephemeral_5m_input_tokens"] < 20
    assert first["input_tokens"] > 2
    assert second["cache_creation_input_tokens"] == 0
    assert second["cache_read_input_tokens"] > first["cache_creation_input_tokens"]
    refused = server.post("/v1/messages", {**body, "system": [text("a", SHORT)] * 5})
    assert refused.status == 400
    assert refused.json["error"]["type"] == "invalid_request_error"
