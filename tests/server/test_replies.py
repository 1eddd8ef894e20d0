"""Replies field by field: names, types and order are those of the reference, without further fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.replying import MESSAGES, RECORDED, check, replying
from tests.server.running import Reply, Running
from tests.server.shapes import SHAPES, faults
from tests.server.thinker import WEATHER

TOOL = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with replying(tmp_path_factory.mktemp("replies")) as found:
        yield found


def events_of(reply: Reply) -> list[tuple[str, Any]]:
    """Return names and data of server-sent events."""
    found = []
    for block in reply.body.decode().removesuffix("\n\n").split("\n\n"):
        name, _, data = block.rpartition("data: ")
        found.append((name.removeprefix("event: ").strip(), data if data == "[DONE]" else json.loads(data)))
    return found


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/api/generate", {"prompt": "x"}), ("/api/chat", {"messages": MESSAGES, "tools": [WEATHER]})],
)
def test_native_answers(server: Running, path: str, fields: dict[str, Any]) -> None:
    asked = {"model": "talker", **fields}
    whole = server.post(path, asked | {"stream": False})
    assert whole.headers["content-type"] == "application/json; charset=utf-8"
    check(f"POST {path} whole", whole.json)
    streamed = server.post(path, asked)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    *pieces, last = streamed.lines
    assert len(pieces) >= 3
    for piece in pieces:
        check(f"POST {path} piece", piece)
    check(f"POST {path} end", last)
    for reason in ({}, {"keep_alive": 0}):
        loaded = server.post(path, {"model": "talker"} | reason)
        assert loaded.headers["content-type"] == "application/json; charset=utf-8"
        check(f"POST {path} load", loaded.json)


def test_the_order_of_a_native_chat(server: Running) -> None:
    """Thinking, then content, then calls, each call whole."""
    lines = server.post("/api/chat", {"model": "talker", "messages": MESSAGES, "tools": [WEATHER]}).lines
    kinds = []
    for line in lines[:-1]:
        message = line["message"]
        kinds += [name for name in ("thinking", "content", "tool_calls") if message.get(name)]
    assert re.fullmatch("(thinking )+(content )+(tool_calls )+", " ".join(kinds) + " ")


def test_what_is_recorded_is_compared(server: Running) -> None:
    """This includes every endpoint of the reference; the others are ours, or reply with text."""
    assert RECORDED.keys() - {"about", "steps", "statuses"} <= SHAPES.keys()
    named = (*RECORDED, *RECORDED["steps"], *RECORDED["statuses"])
    known = {" ".join(name.split()[:2]) for name in named}
    there = {
        f"{method} {route.path.replace(':path', '')}"
        for route in server.app.routes
        for method in route.methods or ()
    }
    ours = {
        "POST /api/rerank",
        "POST /v1/rerank",
        "POST /api/memory",
        "POST /api/name",
        "GET /api/suggestions",
        "POST /api/tokenize",
        "POST /api/detokenize",
        "POST /v1/messages/count_tokens",
    }
    ours |= {"POST /v1/responses/input_tokens", "GET /v1/responses/{id}", "DELETE /v1/responses/{id}"}
    ours |= {"GET /v1/responses/{id}/input_items", "POST /v1/responses/{id}/cancel"}
    files = ("POST /v1/files", "GET /v1/files", "GET /v1/files/{id}", "DELETE /v1/files/{id}")
    batches = ("POST /v1/batches", "GET /v1/batches", "GET /v1/batches/{id}", "POST /v1/batches/{id}/cancel")
    ours |= {*files, *batches, "GET /v1/files/{id}/content"}
    others = ["/rerank", "/v2/rerank", "/tokenize", "/detokenize", "/apply-template", "/infill"]
    others += [
        "/slots/{id}",
        "/api/states",
        "/api/cluster/drain",
        "/api/cluster/remove",
        "/api/cluster/replace",
        "/lora-adapters",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        *("/reranking", "/v1/reranking", "/score", "/v1/score", "/embedding", "/embeddings"),
        *("/completion", "/completions", "/chat/completions", "/responses", "/responses/input_tokens"),
        *("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"),
        *("/models/load", "/models/unload"),
    ]
    ours |= {f"POST {path}" for path in others}
    gets = ["/health", "/metrics", "/openapi.json", "/docs", "/props", "/slots", "/lora-adapters"]
    gets += ["/tokenizer_info", "/api/receipt-key"]
    gets += [
        "/v1/health",
        "/version",
        "/ping",
        "/load",
        "/models",
        "/models/{model}",
        "/favicon.ico",
        "/robots.txt",
    ]
    gets += ["/apple-touch-icon.png", "/apple-touch-icon-precomposed.png"]
    ours |= {f"GET {path}" for path in gets}
    texts = {"GET /", "GET /api/status", "POST /v1/responses"}  # of the last one: as "response"
    texts |= {"GET /web/{name}", "GET /api/live/cache", "GET /api/answers/{id}", "DELETE /api/answers/{id}"}
    texts |= {"GET /api/live", "GET /api/key", "GET /health/ready", "GET /health/live"}
    heads = {name.replace("GET", "HEAD") for name in known | ours | texts}
    assert there - known == (ours | texts | heads) & there - known


def test_vectors(server: Running) -> None:
    check("POST /api/embed", server.post("/api/embed", {"model": "vectors", "input": ["a", "b"]}).json)
    check("POST /api/embeddings", server.post("/api/embeddings", {"model": "vectors", "prompt": "a"}).json)
    check("POST /v1/embeddings", server.post("/v1/embeddings", {"model": "vectors", "input": "a"}).json)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [WEATHER]}),
    ],
)
def test_openai_answers(server: Running, path: str, fields: dict[str, Any]) -> None:
    asked = {"model": "talker", **fields}
    check(f"POST {path} whole", server.post(path, asked).json)
    reply = server.post(path, asked | {"stream": True, "stream_options": {"include_usage": True}})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *pieces, last, usage, done = events_of(reply)
    assert {name for name, _ in (*pieces, last, usage, done)} == {""}
    for _, piece in (*pieces, last):
        check(f"POST {path} piece", piece)
    assert len({piece["id"] for _, piece in pieces}) == len({piece["created"] for _, piece in pieces}) == 1
    assert [piece["choices"][0]["finish_reason"] for _, piece in pieces] == [None] * len(pieces)
    assert last[1]["choices"][0]["finish_reason"] in ("stop", "tool_calls")
    assert done[1] == "[DONE]"
    check("openai_usage", usage[1]["usage"])
    if "chat" in path:
        check(f"POST {path} usage", usage[1])
        deltas = [piece["choices"][0]["delta"] for _, piece in pieces]
        assert ["role" in delta for delta in deltas] == [True] + [False] * (len(deltas) - 1)
        assert all(len(delta.keys() - {"role"}) == 1 for delta in deltas)
        assert last[1]["choices"][0]["delta"] == {}


def test_responses(server: Running) -> None:
    asked = {"model": "talker", "input": "x", "tools": [{"type": "function", **WEATHER["function"]}]}
    check("response", server.post("/v1/responses", asked).json)
    found = events_of(server.post("/v1/responses", asked | {"stream": True}))
    for number, (name, data) in enumerate(found):
        assert (name, number) == (data.pop("type"), data.pop("sequence_number"))
        check(name, data)
    # Every event of the fixture occurred, so the fixture has no unused event.
    assert {name for name, _ in found} == {name for name in SHAPES if name.startswith("response.")}


def test_messages(server: Running) -> None:
    asked = {"model": "talker", "messages": MESSAGES, "max_tokens": 9, "tools": [TOOL]}
    asked["thinking"] = {"type": "enabled"}
    check("POST /v1/messages whole", server.post("/v1/messages", asked).json)
    found = events_of(server.post("/v1/messages", asked | {"stream": True}))
    for name, data in found:
        check(name, data)
    names = " ".join(name.removeprefix("content_block_") for name, _ in found)
    assert re.fullmatch("message_start( start( delta)+ stop){3} message_delta message_stop", names)


@pytest.mark.parametrize(
    ("method", "path", "body", "shape"),
    [
        ("POST", "/api/chat", {"model": "nobody", "messages": MESSAGES}, "native error"),
        ("POST", "/api/chat", {}, "native error"),
        ("GET", "/v1/models/nobody", None, "openai error"),
        ("POST", "/v1/chat/completions", {"model": "talker"}, "openai error"),
        ("POST", "/v1/responses", {"model": "talker"}, "openai error"),
        (
            "POST",
            "/v1/messages",
            {"model": "nobody", "messages": MESSAGES, "max_tokens": 1},
            "anthropic error",
        ),
        ("POST", "/v1/messages", {}, "anthropic error"),
    ],
)
def test_errors(server: Running, method: str, path: str, body: Any, shape: str) -> None:
    reply = server.ask(method, path, body)
    assert reply.status in (400, 404)
    check(shape, reply.json)


def test_the_comparison_finds_what_differs() -> None:
    whole = {"status": "x", "total": 3}
    assert list(faults("progress", whole)) == []
    assert list(faults("progress", {"total": 3})) == [".status is missing"]
    assert list(faults("progress", whole | {"totals": 3})) == [".totals is too much"]
    assert list(faults("progress", whole | {"total": "3"})) == [".total is '3', not int"]
    assert len(list(faults("message_item|call_item", {"type": "message"}))) == 1


def test_what_is_ours_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/server.md").read_text()

    def ours(shape: Any) -> Iterator[str]:
        for key, value in shape.items() if isinstance(shape, dict) else ():
            if key.startswith("+"):
                yield key.strip("+?")
            yield from ours(value)
        for item in shape if isinstance(shape, list) else ():
            yield from ours(item)

    missing = {name for name in ours(SHAPES) if f"`{name}`" not in page}
    assert missing == set()
