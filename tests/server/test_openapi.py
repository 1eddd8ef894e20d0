"""The OpenAPI description: complete, correct, and harmless."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from chaski.server.dialects import anthropic, ollama, openai, responses
from chaski.server.dialects.recipes import read_recipe
from chaski.server.dialects.rerank import read_rerank
from chaski.server.fields.reader import Fields
from chaski.server.http.endpoint import Endpoint
from chaski.server.routes import BODIES
from tests.server.running import Running


class Recording(dict[str, Any]):
    """An object that remembers which of its fields were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


MESSAGES = [{"role": "user", "content": "x"}]


def read_openai_chat(body: Mapping[str, Any]) -> None:
    openai.read_chat(body)
    openai.read_count(body)
    openai.includes_usage(body)


def read_openai_completion(body: Mapping[str, Any]) -> None:
    openai.read_completion(body)
    openai.read_count(body)
    openai.includes_usage(body)


def read_native_chat(body: Mapping[str, Any]) -> None:
    ollama.read_answer_id(body)
    ollama.read_chat(body)


def read_anthropic_messages(body: Mapping[str, Any]) -> None:
    anthropic.is_kept(body)
    anthropic.read_messages(body)


def read_anthropic_count(body: Mapping[str, Any]) -> None:
    anthropic.is_kept(body)
    anthropic.read_count(body)


def read_native_recipe(body: Mapping[str, Any]) -> None:
    read_recipe(Fields(body))


@pytest.mark.parametrize(
    ("path", "read", "body", "elsewhere"),
    [
        ("/api/generate", ollama.read_generate, {}, set()),
        ("/api/chat", read_native_chat, {}, set()),
        ("/api/embed", ollama.read_embed, {}, set()),
        ("/api/rerank", read_rerank, {"query": "x", "documents": ["x"]}, set()),
        ("/v1/rerank", read_rerank, {"query": "x", "documents": ["x"]}, set()),
        (
            "/api/create",
            read_native_recipe,
            {"files": {"a.gguf": f"sha256:{'0' * 64}"}},
            {"model", "name", "stream"},
        ),
        ("/v1/chat/completions", read_openai_chat, {"messages": MESSAGES}, set()),
        ("/v1/completions", read_openai_completion, {"prompt": "x"}, set()),
        ("/v1/embeddings", openai.read_embeddings, {"input": "x"}, set()),
        (
            "/v1/responses",
            responses.read_response,
            {"input": "x", "include": ["message.output_text.logprobs"]},
            set(),
        ),
        (
            "/v1/messages",
            read_anthropic_messages,
            {"model": "m", "max_tokens": 1, "messages": MESSAGES},
            set(),
        ),
        ("/v1/messages/count_tokens", read_anthropic_count, {"model": "m", "messages": MESSAGES}, set()),
    ],
)
def test_the_fields_are_those_that_are_read(
    path: str, read: Callable[[Any], Any], body: dict[str, Any], elsewhere: set[str]
) -> None:
    """With all options, the accepted fields of a request are exactly those of the table.

    An alias is read only without the other field, so each is omitted in turn.
    """
    found = set(elsewhere)
    for missing in (None, *body):
        recording = Recording({key: value for key, value in body.items() if key != missing})
        try:
            read(recording)
        except Exception:
            assert missing is not None
        found |= recording.read
    assert found == set(BODIES["POST", path].fields)


def test_every_endpoint_is_described(server: Running) -> None:
    document = server.get("/openapi.json").json
    assert document["openapi"].startswith("3.1")
    routes = {
        (method, re.sub(r":path\}", "}", route.path))
        for route in server.app.routes
        for method in route.methods - {"HEAD"} or {"HEAD"}
    }
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == routes
    bodies = {
        (method, route.path)
        for route in server.app.routes
        for method in route.methods - {"HEAD", "GET"}
        if isinstance(route.endpoint, Endpoint) and route.endpoint.body is not None
    }
    assert bodies == set(BODIES)
    for item in document["paths"].values():
        for operation in item.values():
            assert operation["summary"]
            for field in (
                operation.get(
                    "requestBody", {"content": {"application/json": {"schema": {"properties": {}}}}}
                )
            )["content"]["application/json"]["schema"]["properties"].values():
                assert field["description"]


def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    reply = server.get("/docs")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; ")
    text = reply.body.decode()
    assert "<script" not in text
    assert not re.search(r"(src|href)=\"(?!openapi\.json\")", text)
    assert "POST /v1/responses" in text
    assert text.count("<details>") == sum(
        len(item) for item in server.get("/openapi.json").json["paths"].values()
    )
