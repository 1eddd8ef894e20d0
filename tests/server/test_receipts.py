"""Receipts in the replies of every API, whole and streamed: they are signed, and they verify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.names import ModelName
from chaski.runner.llm import LLM
from chaski.store.bundled import bundled_model
from tests.server.running import Running

QUESTION: Any = [{"role": "user", "content": "What is chaski?"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": QUESTION, "options": {"num_predict": 9}},
    "/api/generate": {"prompt": "What is", "options": {"num_predict": 9}},
    "/v1/chat/completions": {"messages": QUESTION, "max_tokens": 9},
    "/v1/completions": {"prompt": "What is", "max_tokens": 9},
    "/v1/responses": {"input": "What is chaski?", "max_output_tokens": 9},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 9},
}


@pytest.fixture(scope="module")
def model() -> Iterator[LLM]:
    guide = bundled_model(ModelName.parse("guide"))
    assert guide is not None
    with chaski.load("guide") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def key(server: Running) -> str:
    found = server.get("/api/receipt-key").json
    assert found["algorithm"] == "Ed25519"
    return str(found["key"])


def receipts_in(value: Any) -> list[Any]:
    """Return every field `receipt` at any depth."""
    if isinstance(value, list):
        return [found for item in value for found in receipts_in(item)]
    if not isinstance(value, dict):
        return []
    own = [value["receipt"]] if "receipt" in value else []
    return own + [found for name, item in value.items() if name != "receipt" for found in receipts_in(item)]


def events(body: bytes) -> list[Any]:
    """Return the objects of a stream of lines or of server-sent events."""
    lines = [line.removeprefix(b"data: ") for line in body.splitlines()]
    return [json.loads(line) for line in lines if line.startswith(b"{")]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("streams", [False, True])
def test_replies_have_receipts_that_verify(
    server: Running, model: LLM, key: str, path: str, streams: bool
) -> None:
    reply = server.post(path, {"model": "helper", "stream": streams, "receipt": True, **ROUTES[path]})
    assert reply.status == 200
    said = events(reply.body) if streams else [reply.json]
    found = [(index, receipt) for index, each in enumerate(said) for receipt in receipts_in(each)]
    assert len(found) == 1
    index, receipt = found[0]
    assert index >= len(said) - 2
    assert len(receipt["output"]) == 9
    result = chaski.verify(receipt, model, key=key)
    assert result.is_same, str(result)
    assert result.signed_by == key


@pytest.mark.parametrize("path", ROUTES)
def test_replies_have_none_without_being_asked(server: Running, path: str) -> None:
    reply = server.post(path, {"model": "helper", "stream": False, **ROUTES[path]})
    assert reply.status == 200
    assert receipts_in(reply.json) == []


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages"])
def test_a_header_asks_too(server: Running, model: LLM, path: str) -> None:
    body = {"model": "helper", "stream": False, **ROUTES[path]}
    (whole,) = receipts_in(server.post(path, body, **{"X-Chaski-Receipt": "true"}).json)
    assert "tokens" in whole["prompt"]
    (private,) = receipts_in(server.post(path, body, **{"X-Chaski-Receipt": "digest"}).json)
    assert "tokens" not in private["prompt"]
    assert chaski.verify(private, model, prompt=whole["prompt"]["tokens"]).is_same
    assert receipts_in(server.post(path, body, **{"X-Chaski-Receipt": "false"}).json) == []
    assert server.post(path, body, **{"X-Chaski-Receipt": "x"}).status == 400


def test_several_answers_have_one_each(server: Running, model: LLM) -> None:
    wish = {"n": 2, "receipt": {"top_logits": 2}, "seed": 3}
    body = {"model": "helper", **wish, **ROUTES["/v1/chat/completions"]}
    choices = server.post("/v1/chat/completions", body).json["choices"]
    assert [choice["receipt"]["seed"] for choice in choices] == ["3", "4"]
    assert all(chaski.verify(choice["receipt"], model).is_same for choice in choices)


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("/api/generate", {"receipt": 7}, "receipt"),
        ("/api/generate", {"receipt": {"top_logits": 99}}, "top_logits"),
        ("/v1/completions", {"receipt": {"prompt": "none"}}, "receipt"),
        ("/v1/completions", {"receipt": True, "use_beam_search": True, "n": 2}, "beam search"),
    ],
)
def test_what_cannot_be_verified_is_refused(
    server: Running, path: str, body: dict[str, Any], problem: str
) -> None:
    reply = server.post(path, {"model": "helper", "stream": False, **ROUTES[path], **body})
    assert reply.status == 400
    assert problem in reply.body.decode()


def test_the_key_stays_in_the_store(server: Running, models: Path, key: str) -> None:
    file = models / "chaski" / "receipt_key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert server.get("/api/receipt-key").json["key"] == key
