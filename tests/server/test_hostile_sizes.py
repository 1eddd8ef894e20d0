"""Requests with many or large parts: proportional, bounded work and memory, and no other client waits."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chaski.errors import OptionError
from chaski.server.dialects import anthropic, ollama, openai, responses
from chaski.server.fields.ignored import Ignored
from chaski.server.network.jsons import MAX_VALUES, InnerJson
from tests.server.running import Running
from tests.server.test_large_bodies import _PROGRAM, ask

CHAT, MESSAGES, RESPONSES, GENERATE = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/generate"
_MOST_GROWTH = 64
"""The limit of the server process's memory in MB during a hostile request."""
_LONGEST_WAIT = 0.5
"""The limit of another client's wait in seconds meanwhile."""


def text(length: int) -> dict[str, str]:
    return {"type": "text", "text": "x" * length}


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(**fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": "", **fields}


def called(arguments: str) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return assistant(tool_calls=[call])


def thought(length: int) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "x" * length}


def summary(length: int) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * length}]}


_THOUGHT = thought(300)
_SUMMARY = summary(300)
_LONG = 3000
"""Characters of parts that are read here; together nearly as large as the largest body."""

PARTS: dict[str, tuple[Callable[[Mapping[str, Any]], object], dict[str, Any]]] = {
    "chat": (openai.read_chat, {"messages": [user([text(_LONG)] * 20_000)]}),
    "blocks": (anthropic.read_messages, {"messages": [user([text(_LONG)] * 20_000)]}),
    "system": (anthropic.read_messages, {"messages": [user("a")], "system": [text(_LONG)] * 20_000}),
    "thoughts": (anthropic.read_messages, {"messages": [assistant(content=[thought(_LONG)] * 20_000)]}),
    "reasoning": (responses.read_response, {"input": [summary(_LONG)] * 20_000}),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_joined_in_time_in_proportion(name: str) -> None:
    """Joining each part to all earlier ones took minutes."""
    read, body = PARTS[name]
    start = time.thread_time()
    read({"model": "guide", "max_tokens": 1, **body})
    assert time.thread_time() - start < 5


def test_joined_parts_are_the_same_text() -> None:
    blocks = [text(2), text(0), {"type": "text", "text": "y"}]
    found = anthropic.read_messages(
        {"model": "guide", "max_tokens": 1, "system": blocks, "messages": [user(blocks)]}
    )
    assert [each["content"] for each in found.messages] == ["xx\n\ny", "xx\n\ny"]
    thinking = assistant(
        content=[{"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "b"}]
    )
    found = anthropic.read_messages({"model": "guide", "max_tokens": 1, "messages": [thinking, user("c")]})
    assert found.messages[0]["thinking"] == "ab"
    summed = [{"type": "reasoning", "summary": [{"text": each}]} for each in "ab"]
    assert responses.read_response({"input": [*summed, user("c")]}).chat.messages[0]["thinking"] == "ab"


def test_an_item_is_referred_to_once() -> None:
    """Many references to a large item made a conversation of the product of both."""
    references = [{"type": "item_reference", "id": "msg_1"}] * 2
    with pytest.raises(OptionError, match="Duplicate item found with id msg_1"):
        responses.read_response({"input": references}, find_item=lambda item_id: user("a"))


def test_json_in_strings_has_as_many_values_as_a_body() -> None:
    inner = InnerJson()
    assert inner.load('{"a": [1, 2]}') == {"a": [1, 2]}
    half = "[" + "1," * (MAX_VALUES // 2) + "1]"
    inner.load(half)
    with pytest.raises(OptionError, match="more than 500000 values"):
        inner.load(half)
    with pytest.raises(OptionError, match="more than 500000 values"):
        openai.read_chat({"messages": [user("a"), called(f'{{"a": {half}}}'), called(f'{{"a": {half}}}')]})
    for arguments in (f'{{"a": {half}}}', f'{{"a": {half}}} '):
        assert openai.read_chat({"messages": [called(arguments), user("a")]}).messages
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": f'{{"a": {half}}}'}
    calls = [call, call]
    use = {"type": "tool_use", "id": "a", "name": "f", "input": f'{{"a": {half}}}'}
    with pytest.raises(OptionError, match="more than 500000 values"):
        anthropic.read_messages(
            {"model": "guide", "max_tokens": 1, "messages": [assistant(content=[use] * 2)]}
        )
    with pytest.raises(OptionError, match="more than 500000 values"):
        ollama.read_chat({"model": "guide", "messages": [called(f'{{"a": {half}}}')] * 2})
    with pytest.raises(OptionError, match="more than 500000 values"):
        responses.read_response({"input": calls})
    with pytest.raises(OptionError, match="more than 500000 values"):
        openai.read_chat(
            {"messages": [user("a")], "guided_json": f'{{"enum": {half[:-1] + "," + half[1:]}}}'}
        )


def test_calls_for_several_answers_are_no_larger_than_a_body() -> None:
    body = {"messages": [user("x" * (5 << 20))], "n": 16}
    with pytest.raises(OptionError, match=r"have 838\d+ characters together; at most 67108864"):
        openai.read_chat(body)
    assert openai.read_chat({**body, "n": 12}).messages
    prompts = {"prompt": ["a"] * 256, "suffix": "x" * (1 << 20)}
    with pytest.raises(OptionError, match="characters together"):
        openai.read_completion(prompts)
    assert len(openai.read_completion({**prompts, "prompt": ["a"] * 32}).prompts) == 32


def test_ignored_names_are_cut_before_they_are_read() -> None:
    ignored = Ignored()
    start = time.monotonic()
    for _ in range(10):
        ignored.add("field", "é, " * 5_000_000)
    assert time.monotonic() - start < 1
    assert list(ignored) == [f"field {'?? ' * 26}??"]


def request(route: str, **fields: object) -> tuple[str, bytes]:
    return route, json.dumps({"model": "guide", "max_tokens": 1, **fields}).encode()


def options(**values: object) -> tuple[str, bytes]:
    return request(GENERATE, prompt="a", raw=True, stream=False, options={"num_predict": 1, **values})


def halves(count: int) -> tuple[str, bytes]:
    items = ",".join(["1"] * count)
    return "/api/chat", f'{{"model": "guide", "{"n" * count * 2}": [{items}], "b": "\\ud800"}}'.encode()


INPUTS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "halves of pairs, 60 KB": lambda: halves(15_000),
    "halves of pairs, 340 KB": lambda: halves(85_000),
    "a million beams": lambda: options(num_beams=10**6),
    "a thousand million beams": lambda: options(num_beams=10**9),
    "parts of a chat": lambda: request(CHAT, messages=[user([text(300)] * 8000)]),
    "parts of messages": lambda: request(MESSAGES, messages=[user([text(300)] * 8000)]),
    "parts of a system prompt": lambda: request(MESSAGES, messages=[user("a")], system=[text(300)] * 8000),
    "thoughts": lambda: request(MESSAGES, messages=[assistant(content=[_THOUGHT] * 8000), user("a")]),
    "reasoning": lambda: request(RESPONSES, input=[*([_SUMMARY] * 8000), user("a")]),
    "parts of a response": lambda: request(RESPONSES, input=[user([text(300)] * 8000)]),
    "many small parts": lambda: request(MESSAGES, messages=[user([text(1)] * 20_000)] * 3),
    "many messages": lambda: request(CHAT, messages=[user("a")] * 20_000),
    "many results": lambda: request(MESSAGES, messages=[user([{"type": "tool_result"}] * 20_000)] * 3),
    "many unread fields": lambda: request(
        CHAT, messages=[user("a") | {f"k{n}": 1 for n in range(20)}] * 9000
    ),
    "metadata": lambda: request(
        "/v1/batches", input_file_id="file-00000000", metadata={"k": "x" * (64 << 20)}
    ),
    "a long number of an image": lambda: request(GENERATE, prompt=f"[img-{'1' * 4301}]", raw=True),
    "many images": lambda: request(GENERATE, prompt="[img-0]" * 20_000, raw=True, stream=False),
    "long stop texts": lambda: options(stop=[f"{n}{'x' * 190_000}" for n in range(64)]),
    "many biases": lambda: request(
        CHAT, messages=[user("a")], logit_bias={str(n): 1 for n in range(100_000)}
    ),
    "values in a call": lambda: request(
        CHAT, messages=[called(f'{{"a": [{"1," * 6_000_000}1]}}'), user("a")]
    ),
    "values in a schema": lambda: request(
        CHAT, messages=[user("a")], guided_json=f'{{"enum": [{"[]," * 4_000_000}1]}}'
    ),
    "tokens of a long text": lambda: request("/api/tokenize", text="x" * (8 << 20)),
    "answers to a long text": lambda: request(CHAT, messages=[user("x" * (12 << 20))], n=16),
    "prompts with a long suffix": lambda: request(
        "/v1/completions", prompt=["a"] * 256, suffix="x" * (1 << 20)
    ),
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Run a separate server with a loaded model; yield its port and process."""
    folder = tmp_path_factory.mktemp("models")
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for route, content in ((CHAT, "messages"), (MESSAGES, "messages"), (RESPONSES, "input")):
            assert ask(port, "POST", *request(route, **{content: [user("a")]}))[0] == 200
        yield port, server.pid
        server.terminate()


def resident(pid: int, name: str) -> int:
    """Return the memory of a process in MB: now (VmRSS), or the peak since the last reset (VmHWM)."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines[name].split()[0]) >> 10


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.parametrize("name", INPUTS)
def test_hostile_sizes_fill_and_stall_no_server(process: tuple[int, int], name: str) -> None:
    port, pid = process
    route, body = INPUTS[name]()
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets VmHWM
    before = resident(pid, "VmRSS")
    # Other programs may stall a server, too, but hardly three times in a row.
    waits = []
    for _ in range(3):
        waits.append(longest_wait(port, route, body))
        if waits[-1] < _LONGEST_WAIT:
            break
    assert resident(pid, "VmHWM") - before <= _MOST_GROWTH
    assert min(waits) < _LONGEST_WAIT


def longest_wait(port: int, route: str, body: bytes) -> float:
    """Return the seconds of the slowest `/api/version` while the server reads a hostile request."""
    found: list[int] = []
    asker = threading.Thread(target=lambda: found.append(ask(port, "POST", route, body)[0]))
    asker.start()
    longest = 0.0
    while asker.is_alive():
        start = time.monotonic()
        assert ask(port, "GET", "/api/version")[0] == 200
        longest = max(longest, time.monotonic() - start)
        time.sleep(0.01)
    assert found[0] in (200, 400, 404, 413)
    return longest


def test_what_is_no_image_number_is_text(server: Running) -> None:
    reply = server.post(
        GENERATE, {"model": "guide", "prompt": f"[img-{'1' * 4301}]", "raw": True, "stream": False}
    )
    assert reply.status in (200, 400)


def test_so_many_tokens_are_returned(server: Running) -> None:
    reply = server.post("/api/tokenize", {"model": "guide", "text": "x" * 600_000})
    assert reply.status == 400
    assert "at most 524288 are returned" in reply.error


def test_a_shortened_prompt_has_the_tokens_that_were_computed(server: Running) -> None:
    """Once the server transferred all other tokens, too, as many as fit a body."""
    body = {"model": "guide", "prompt": "word " * 5000, "stream": False, "options": {"num_predict": 2}}
    reply = server.post(GENERATE, body)
    assert reply.status == 200
    assert len(reply.json["context"]) <= 1024 + 2


def test_large_bodies_are_read_in_the_thread_of_the_parser(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    original = openai.read_chat

    def read_chat(body: Mapping[str, Any]) -> object:
        names.append(threading.current_thread().name)
        return original(body)

    monkeypatch.setattr(openai, "read_chat", read_chat)
    for length in (100, 100_000):
        assert server.post(CHAT, json.loads(request(CHAT, messages=[user("x" * length)])[1])).status == 200
    assert [name.startswith("chaski-body") for name in names] == [False, True]
