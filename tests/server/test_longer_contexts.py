"""A model whose context nobody has set is loaded again, once, for a request that needs a longer one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import chaski
from chaski.errors import OutOfMemoryError
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests import tiny_llama
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until
from tests.tiny_llama import write_tiny_llama

CONTEXT, LONGEST, ROOM = 4000, 20_000, 2048

Body = Mapping[str, Any]
Serve = Callable[..., Running]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with a tiny model for 8,192 tokens, as `tiny`, and as `set` with its own num_ctx."""
    folder = tmp_path_factory.mktemp("tiny-models")
    path = write_tiny_llama(folder / "tiny.gguf", llama__context_length=8192)
    for name, parameters in (("tiny", {}), ("set", {"num_ctx": CONTEXT})):
        for _ in create(Store(folder), ModelName.parse(name), Recipe(sources=[path], parameters=parameters)):
            pass
    return folder


@pytest.fixture
def serve(tiny: Path) -> Iterator[Serve]:
    """Return a function that runs a server whose workers are those of a script."""
    opened = []

    def start(script: Script, **settings: Any) -> Running:
        opened.append(running(Settings(address=SOMEWHERE, **settings), tiny, script.open))
        return opened[-1].__enter__()

    yield start
    for each in opened:
        each.__exit__(None, None, None)


def words(count: int, **more: Any) -> dict[str, Any]:
    """Return a request whose prompt has that many tokens."""
    return {"model": "tiny", "prompt": "x" * count, "raw": True, "stream": False, **more}


def contexts(script: Script) -> list[int]:
    return [worker.prompts.context for worker in script.opened]


def test_a_request_that_needs_more_gets_it(serve: Serve) -> None:
    script = Script(context=CONTEXT, max_context=LONGEST)
    server = serve(script)
    assert server.post("/api/generate", words(1000)).json["prompt_eval_count"] == 1000
    assert contexts(script) == [CONTEXT]
    reply = server.post("/api/generate", words(7000)).json
    assert (reply["prompt_eval_count"], "prompt_tokens_dropped" in reply) == (7000, False)
    assert contexts(script) == [CONTEXT, 7000 + ROOM]  # with room for an answer
    server.post("/api/generate", words(6000))
    assert len(script.opened) == 2


def test_the_answer_needs_room_too(serve: Serve) -> None:
    script = Script(context=CONTEXT, max_context=LONGEST)
    server = serve(script)
    server.post("/api/generate", words(CONTEXT - 2, options={"num_predict": 2}))
    assert len(script.opened) == 1
    server.post("/api/generate", words(CONTEXT - 2, options={"num_predict": 3}))
    assert contexts(script) == [CONTEXT, CONTEXT + 1]


def test_no_loop_at_the_limit(serve: Serve) -> None:
    """What the longest context does not hold is cut or refused, as ever."""
    script = Script(context=CONTEXT, max_context=LONGEST)
    server = serve(script)
    for _ in range(2):
        reply = server.post("/api/generate", words(LONGEST + 9)).json
        assert reply["prompt_eval_count"] == LONGEST
        refused = server.post("/api/generate", words(LONGEST + 9, truncate=False))
        assert refused.status == 400
        assert f"the model was made for {LONGEST} tokens" in refused.error
    assert contexts(script) == [CONTEXT, LONGEST]


def test_no_loop_where_memory_is_short(serve: Serve) -> None:
    def fail(options: Mapping[str, Any]) -> OutOfMemoryError | None:
        return OutOfMemoryError("no") if options.get("needed_context") else None

    script = Script(context=CONTEXT, max_context=LONGEST, fail=fail)
    server = serve(script, parallel=1)
    for _ in range(2):
        assert server.post("/api/generate", words(7000)).json["prompt_eval_count"] == CONTEXT
    assert [worker.options.get("needed_context") for worker in script.opened] == [None, 7000 + ROOM, None]
    refused = server.post("/api/generate", words(7000, truncate=False)).error
    assert f"with a context of {CONTEXT}; set OLLAMA_CONTEXT_LENGTH or num_ctx to 8192" in refused


@pytest.mark.parametrize(
    ("settings", "body"),
    [
        ({}, {"options": {"num_ctx": CONTEXT}}),
        ({"context": CONTEXT}, {}),
        ({}, {"model": "set"}),
    ],
    ids=["request", "environment", "model"],
)
def test_a_context_that_is_set_stays(serve: Serve, settings: Body, body: Body) -> None:
    script = Script(context=CONTEXT, max_context=LONGEST)
    server = serve(script, **settings)
    assert server.post("/api/generate", words(7000, **body)).json["prompt_eval_count"] == CONTEXT
    assert len(script.opened) == 1


def test_answers_in_flight_end_first(serve: Serve) -> None:
    script = Script(context=CONTEXT, max_context=LONGEST, hold=threading.Event(), pieces=("one", "two"))
    server = serve(script)
    with ThreadPoolExecutor(4) as threads:
        early = threads.submit(server.post, "/api/generate", words(20))
        wait_until(lambda: script.asked and script.opened)
        late = [threads.submit(server.post, "/api/generate", words(7000)) for _ in range(3)]
        wait_until(lambda: server.services.models.waiting == 3)
        assert len(script.opened) == 1
        assert script.opened[0].is_running
        assert script.hold is not None
        script.hold.set()
        assert early.result(10).json["response"] == "onetwo"
        assert [each.result(10).json["prompt_eval_count"] for each in late] == [7000] * 3
    assert len(script.opened) == 2  # once for all


def test_texts_of_vectors(serve: Serve) -> None:
    script = Script(context=CONTEXT, max_context=LONGEST)
    server = serve(script)
    server.services.catalog.look_up("tiny")[1].is_embedding = True
    reply = server.post("/api/embed", {"model": "tiny", "input": ["x" * 9000, "x" * 12000, "x"]})
    assert reply.json["prompt_eval_count"] == 21001
    assert contexts(script) == [CONTEXT, 12000]
    reply = server.post("/api/embed", {"model": "tiny", "input": "x" * (LONGEST + 5)})
    assert reply.json["prompt_eval_count"] == LONGEST


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with a model, `tiny`, that takes longer to compute a prompt than to copy it."""
    folder = tmp_path_factory.mktemp("slow-models")
    with patch.object(tiny_llama, "FFN", 8192):
        path = write_tiny_llama(folder / "tiny.gguf", llama__context_length=8192)
    for _ in create(Store(folder), ModelName.parse("tiny"), Recipe(sources=[path])):
        pass
    return folder


@pytest.mark.parametrize("kept", ["memory", pytest.param("on", marks=pytest.mark.long)])
def test_computed_prompts_survive(slow: Path, monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    """The new process takes over what the old one had computed, and answers with the same bits."""
    monkeypatch.setenv("OLLAMA_MODELS", str(slow))
    options = {"num_predict": 8, "seed": 7, "temperature": 1.0}
    begun = words(300, options=options | {"num_ctx": 400})
    longer = words(600, options=options)

    def answer(server: Running, body: Body) -> tuple[str, int]:
        reply = server.post("/api/generate", body).json
        assert reply["prompt_eval_count"] == len(body["prompt"]) + 1  # BOS
        return reply["response"], reply.get("cached_tokens_by_tier", {}).get("memory", 0)

    with chaski.load("tiny", context=8192, prompt_cache=False) as model:
        fresh = model.generate(longer["prompt"], **options).text
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", kept)
    monkeypatch.setenv("CHASKI_PREFIX_CACHE_MEMORY", "100MB")
    with running(Settings(address=SOMEWHERE), slow) as server:
        answer(server, begun)
        (loaded,) = server.get("/api/ps").json["models"]
        assert (loaded["context_length"], loaded["context_reason"]) == (400, "as asked for")
        text, in_memory = answer(server, longer)
        assert text == fresh
        assert in_memory >= 256
        (loaded,) = server.get("/api/ps").json["models"]
        assert loaded["context_length"] == 8192
        assert loaded["context_reason"] == "the model's own"


LONG = [{"role": "user", "content": "x" * 7000}]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/api/generate", {**words(7000), "truncate": False}),
        ("/api/chat", {"messages": LONG, "truncate": False, "stream": False}),
        ("/api/chat", {"messages": LONG, "shift": False, "stream": False}),
        ("/v1/chat/completions", {"messages": LONG}),
        ("/v1/completions", {"prompt": "x" * 7000}),
        ("/v1/responses", {"input": "x" * 7000}),
        ("/v1/messages", {"messages": LONG, "max_tokens": 9}),
    ],
)
def test_each_api_names_the_settings(serve: Serve, route: str, body: dict[str, Any]) -> None:
    server = serve(Script(context=CONTEXT), context=CONTEXT)
    refused = server.post(route, {"truncate": False, **body, "model": "tiny"})
    assert refused.status == 400
    text = refused.body.decode()
    assert str(CONTEXT) in text
    assert "OLLAMA_CONTEXT_LENGTH or num_ctx to 8192" in text
