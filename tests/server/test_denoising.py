"""A model that denoises behind the routes of Ollama and OpenAI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests import families
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running

OPTIONS: dict[str, Any] = {"num_predict": 12, "seed": 5, "denoising_steps": 6, "denoising_block": 4}
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("store")
    for _ in create(
        Store(folder), ModelName.parse("llada"), Recipe(sources=[families.converted("llada/usual")])
    ):
        pass
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHASKI_THREADS", "1")
        with running(Settings(address=SOMEWHERE), folder) as found:
            yield found


def test_ollamas_routes_answer(server: Running) -> None:
    body = {"model": "llada", "prompt": "Hello", "raw": True, "options": OPTIONS}
    whole = server.post("/api/generate", {**body, "stream": False}).json
    assert (whole["done_reason"], whole["eval_count"]) == ("length", 12)
    again = server.post("/api/generate", {**body, "stream": False}).json
    assert again["response"] == whole["response"] != ""
    chat = server.post(
        "/api/chat", {"model": "llada", "messages": MESSAGES, "stream": False, "options": OPTIONS}
    )
    assert chat.json["message"]["content"]


def test_openais_route_answers(server: Running) -> None:
    body = {"model": "llada", "messages": MESSAGES, "max_tokens": 9, "seed": 1, "denoising_block": 3}
    answer = server.post("/v1/chat/completions", body).json
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("option", "value"), [("format", "json"), ("receipt", True)])
def test_what_needs_tokens_in_order_is_refused_by_name(server: Running, option: str, value: object) -> None:
    body = {"model": "llada", "prompt": "Hello", option: value, "stream": False}
    refused = server.post("/api/generate", body)
    assert refused.status == 400
    assert f"option {option} needs tokens in order" in refused.json["error"]
