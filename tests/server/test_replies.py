"""Replies field by field: names, types and order are those of the reference, and none beyond the listed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Reply, Running, running
from tests.server.shapes import SHAPES, faults
from tests.server.thinker import TEMPLATE, WEATHER
from tests.store.fake_registry import FakeRegistry
from tests.tiny_llama import write_tiny_llama

RECORDED = json.loads((Path(__file__).parent / "data/recorded.json").read_text())
MESSAGES = [{"role": "user", "content": "x"}]
TOOL = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}
PIECES = (
    "<think>",
    "hm",
    "</think>",
    "Wait. ",
    "So.",
    '<tool_call>{"name": "weather", "arguments": {"city": "x"}}',
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With a model that thinks, says something and calls a tool, and one that makes vectors."""
    folder = tmp_path_factory.mktemp("replies")
    script = Script(pieces=(*PIECES, "</tool_call>"))
    for name, options in (("talker", {"chat_template": TEMPLATE}), ("vectors", {"llama__pooling_type": 1})):
        file = write_tiny_llama(folder / f"{name}.gguf", **options)
        for _ in create(Store(folder), ModelName.parse(name), Recipe(sources=[file], system="Be kind.")):
            pass
    with running(Settings(address=SOMEWHERE), folder, script.open) as found:
        yield found


def check(shape: str, value: Any) -> None:
    """Against all that the reference may say, and against what its documentation shows that it said."""
    assert list(faults(shape, value)) == []
    for recorded in RECORDED.get(shape, ()):
        found = [fault for fault in faults(recorded["fields"], value) if not fault.endswith("is too much")]
        assert found == [], recorded["source"]
        shown = [name.strip("?") for name in recorded["fields"]]
        names = [name for name in shown if name not in recorded.get("unordered", ())]
        assert [name for name in value if name in names] == [name for name in names if name in value]


def events_of(reply: Reply) -> list[tuple[str, Any]]:
    """Names and data of server-sent events."""
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
    """Of every endpoint that the reference has, too: the others are ours, or their replies are text."""
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
        "POST /api/tokenize",
        "POST /api/detokenize",
        "POST /v1/messages/count_tokens",
    }
    ours |= {"POST /v1/responses/input_tokens", "GET /v1/responses/{id}", "DELETE /v1/responses/{id}"}
    ours |= {"GET /v1/responses/{id}/input_items", "POST /v1/responses/{id}/cancel"}
    others = ("/rerank", "/v2/rerank", "/tokenize", "/detokenize", "/apply-template", "/infill")
    ours |= {f"POST {path}" for path in others}
    ours |= {f"GET {path}" for path in ("/health", "/metrics", "/openapi.json", "/docs", "/props", "/slots")}
    texts = {"GET /", "GET /api/status", "POST /v1/responses"}  # of the last one: as "response"
    heads = {name.replace("GET", "HEAD") for name in known | ours | texts}
    assert there - known == (ours | texts | heads) & there - known


def test_models(server: Running) -> None:
    server.post("/api/generate", {"model": "talker"})
    for path in ("/api/version", "/api/status", "/api/tags", "/api/ps", "/v1/models"):
        check(f"GET {path}", server.get(path).json)
    check("GET /v1/models/{model}", server.get("/v1/models/talker").json)
    for verbose in (False, True):
        check("POST /api/show", server.post("/api/show", {"model": "talker", "verbose": verbose}).json)
    assert len(server.get("/api/tags").json["models"]) == 3
    (running,) = server.get("/api/ps").json["models"]
    assert (running["size"], running["size_vram"]) == (4629, 4506)
    assert running["devices"] == {"cpu": 123, "imaginary:0": 4506}
    metrics = server.get("/metrics").body.decode()
    assert 'chaski_memory_bytes{model="talker:latest"} 4629.0' in metrics
    assert 'chaski_device_memory_bytes{device="imaginary:0",model="talker:latest"} 4506.0' in metrics
    assert server.get("/").body == b"Ollama is running"
    for path, body in (("/api/copy", {"source": "talker", "destination": "other"}),):
        assert server.post(path, body).body == b""
    assert server.ask("DELETE", "/api/delete", {"model": "other"}).body == b""


def test_copilot_tells_models_apart_by_their_names(server: Running) -> None:
    asked = {"model": "talker:latest"}
    plain = server.post("/api/show", asked).json["model_info"]
    told = server.post("/api/show", asked, **{"User-Agent": "GitHubCopilotChat/0.30"}).json["model_info"]
    assert told == plain | {"general.basename": "talker:latest"} != plain


def test_steps_of_a_long_work(server: Running) -> None:
    lines = server.post("/api/create", {"model": "child", "from": "talker"}).lines
    for line in lines:
        check("progress", line)
    assert lines[-1] == {"status": "success"}
    check("progress", server.post("/api/create", {"model": "child", "from": "talker", "stream": False}).json)
    server.ask("DELETE", "/api/delete", {"model": "child"})


def steps_of(reply: Reply) -> list[str]:
    """Statuses, each once in a row, with <> for digests."""
    found = [re.sub(r"(sha256:)?[0-9a-f]{12,64}", "<>", line["status"]) for line in reply.lines]
    return [status for status, before in zip(found, ["", *found], strict=False) if status != before]


def test_steps_are_told_in_their_order(tmp_path: Path) -> None:
    data = write_tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    settings = Settings(address=SOMEWHERE, private_registries=frozenset({"127.0.0.1"}))
    with FakeRegistry().running() as registry, running(settings, tmp_path / "s", Script().open) as server:
        registry.put({"model": data})
        name = f"http://{registry.host}/me/model:1"
        pulled = server.post("/api/pull", {"model": name, "insecure": True})
        server.post("/api/copy", {"source": name, "destination": name.replace("model:1", "copy:2")})
        pushed = server.post("/api/push", {"model": name.replace("model:1", "copy:2"), "insecure": True})
        digest = pulled.lines[1]["digest"]
        made = server.post("/api/create", {"model": "made", "files": {"tiny.gguf": digest}})
        for path, reply in (("pull", pulled), ("push", pushed), ("create", made)):
            wanted = [step.split("|") for step in RECORDED["steps"][f"POST /api/{path}"]]
            said = iter(steps_of(reply))
            assert all(any(status in step for status in said) for step in wanted), (path, steps_of(reply))
            for line in reply.lines:
                check("progress", line)


def test_statuses_without_a_body(server: Running) -> None:
    said = RECORDED["statuses"]
    there = next(iter(server.services.catalog.store.blobs))
    new = f"sha256:{hashlib.sha256(b'new').hexdigest()}"
    missing = f"sha256:{'0' * 64}"
    found = {
        "HEAD /api/blobs/{digest}": {
            "there": server.ask("HEAD", f"/api/blobs/{there}").status,
            "missing": server.ask("HEAD", f"/api/blobs/{missing}").status,
        },
        "POST /api/blobs/{digest}": {
            "new": server.post(f"/api/blobs/{new}", b"new").status,
            "wrong": server.post(f"/api/blobs/{missing}", b"other").status,
        },
        "POST /api/copy": {
            name: server.post("/api/copy", {"source": source, "destination": "copied"}).status
            for name, source in (("there", "talker"), ("missing", "nobody"))
        },
        "DELETE /api/delete": {
            name: server.ask("DELETE", "/api/delete", {"model": model}).status
            for name, model in (("there", "copied"), ("missing", "nobody"))
        },
    }
    assert found == {name: codes for name, codes in said.items() if name != "about"}


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
    # Every event of the fixture came, so none is there that nobody sends.
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
