"""Budgets of thoughts and counts of their tokens, in the fields of every API, with a model that runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.server.test_batches import ended
from tests.server.thinker import client_of
from tests.speaking_llama import write_speaking_llama

WORDS = [f"t{number} " for number in range(19)]
TEMPLATE = (
    "{% for m in messages %}{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}"
    "{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
ALWAYS = (
    "{% for m in messages %}{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
)
QUESTION: Any = [{"role": "user", "content": "Q"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": QUESTION, "stream": False},
    "/api/generate": {"prompt": "Q", "stream": False},
    "/v1/chat/completions": {"messages": QUESTION},
    "/v1/responses": {"input": "Q"},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 400, "thinking": {"type": "enabled"}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server: `thinker` thinks if it may, `always` regardless, `frugal` with a budget of its own."""
    folder = tmp_path_factory.mktemp("budgets")
    sayings = {"Q": ["<think>", *WORDS, "</think>", "Wait. ", "ok."]}
    thinker = write_speaking_llama(folder / "thinker.gguf", sayings, TEMPLATE)
    always = write_speaking_llama(folder / "always.gguf", sayings, ALWAYS)
    for name, recipe in (
        ("thinker", Recipe(sources=[thinker])),
        ("always", Recipe(sources=[always])),
        ("frugal", Recipe(sources=[thinker], parameters={"reasoning_budget": 4})),
    ):
        for _ in create(Store(folder), ModelName.parse(name), recipe):
            pass
    with running(Settings(address=SOMEWHERE, parallel=2), folder) as found:
        yield found


def told(path: str, reply: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return the thoughts, the text and the reported tokens of thoughts of a reply."""
    match path:
        case "/api/chat":
            message = reply["message"]
            return message.get("thinking", ""), message["content"], reply.get("thinking_count", 0)
        case "/api/generate":
            return reply.get("thinking", ""), reply["response"], reply.get("thinking_count", 0)
        case "/v1/chat/completions":
            message, usage = reply["choices"][0]["message"], reply["usage"]
            count = usage["completion_tokens_details"]["reasoning_tokens"]
            return message.get("reasoning", ""), message["content"], count
        case "/v1/responses":
            parts = {item["type"]: item for item in reply["output"]}
            thought = parts["reasoning"]["summary"][0]["text"] if "reasoning" in parts else ""
            text = parts["message"]["content"][0]["text"] if "message" in parts else ""
            return thought, text, reply["usage"]["output_tokens_details"]["reasoning_tokens"]
        case _:
            blocks = {block["type"]: block for block in reply["content"]}
            thought = blocks.get("thinking", {}).get("thinking", "")
            details = reply["usage"].get("output_tokens_details", {"thinking_tokens": 0})
            return thought, blocks.get("text", {}).get("text", ""), details["thinking_tokens"]


def ask(server: Running, path: str, model: str = "thinker", **fields: Any) -> tuple[str, str, int]:
    reply = server.post(path, {"model": model, **ROUTES[path], **fields})
    assert reply.status == 200, reply.body
    assert "x-chaski-ignored" not in reply.headers
    return told(path, reply.json)


def thought(count: int) -> tuple[str, str, int]:
    """Return the reply after so many words of the thought; its opening tag is a token too."""
    return "".join(WORDS[:count]).strip(), "Wait. ok.", count + 1 if count else 0


@pytest.mark.parametrize("path", ROUTES)
def test_without_a_budget_the_thought_is_whole(server: Running, path: str) -> None:
    assert ask(server, path) == thought(19)
    assert ask(server, path, "frugal") == thought(3)


def _option(path: str, count: int) -> dict[str, Any]:
    named = {"options": {"reasoning_budget": count}}
    return {"reasoning_budget": count} if path == "/v1/messages" else named


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("count", [2, 6])
def test_the_option(server: Running, path: str, count: int) -> None:
    assert ask(server, path, **_option(path, count)) == thought(count - 1)
    assert ask(server, path, "frugal", **_option(path, count)) == thought(count - 1)


@pytest.mark.parametrize("path", [path for path in ROUTES if path.startswith("/v1")])
@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_budget": 5},
        {"thinking_token_budget": 5},
        {"thinking_budget_tokens": 5},
        {"reasoning_budget_tokens": 5, "reasoning_budget": 5},
        {"thinking_budget": 5},
        {"reasoning": {"max_tokens": 5}},
    ],
)
def test_the_names_of_other_engines(server: Running, path: str, fields: dict[str, Any]) -> None:
    assert ask(server, path, **fields) == thought(4)


def test_anthropics_budget(server: Running) -> None:
    budget = {"type": "enabled", "budget_tokens": 7}
    assert ask(server, "/v1/messages", thinking=budget) == thought(6)
    assert ask(server, "/v1/messages", thinking=budget, output_config={"effort": "high"}) == thought(6)


def test_anthropics_budget_leaves_room_for_the_answer(server: Running) -> None:
    asked = {"model": "thinker", "messages": QUESTION, "thinking": {"type": "enabled", "budget_tokens": 7}}
    reply = server.post("/v1/messages", asked | {"max_tokens": 7})
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    said = "max_tokens is 7, but must be greater than thinking.budget_tokens, which is 7"
    assert said in reply.json["error"]["message"]
    assert server.post("/v1/messages", asked | {"max_tokens": 8}).status == 200


LEVELS: dict[str, Callable[[str], dict[str, Any]]] = {
    "/api/chat": lambda level: {"think": level, "options": {"num_predict": 30}},
    "/api/generate": lambda level: {"think": level, "options": {"num_predict": 30}},
    "/v1/chat/completions": lambda level: {"reasoning_effort": level, "max_tokens": 30},
    "/v1/responses": lambda level: {"reasoning": {"effort": level}, "max_output_tokens": 30},
    "/v1/messages": lambda level: {"output_config": {"effort": level}, "max_tokens": 30},
}


@pytest.mark.parametrize("path", ROUTES)
def test_levels_are_budgets_that_leave_room_for_the_answer(server: Running, path: str) -> None:
    for level, count in (("low", 5), ("medium", 14), ("high", 19), ("max", 19)):
        assert ask(server, path, **LEVELS[path](level)) == thought(count), level


def test_more_levels_of_openai(server: Running) -> None:
    for level, count in (("none", 0), ("minimal", 2), ("xhigh", 19)):
        fields = {"reasoning_effort": level, "max_tokens": 30}
        assert ask(server, "/v1/chat/completions", **fields) == thought(count)
        assert ask(server, "/v1/responses", reasoning={"effort": level}, max_output_tokens=30) == thought(
            count
        )


OFF: dict[str, dict[str, Any]] = {
    "/api/chat": {"think": False},
    "/api/generate": {"think": False},
    "/v1/chat/completions": {"reasoning_effort": "none"},
    "/v1/responses": {"reasoning": {"effort": "none"}},
    "/v1/messages": {"thinking": {"type": "disabled"}},
}


@pytest.mark.parametrize("path", ROUTES)
def test_no_thinking_even_where_the_template_cannot_switch_it_off(server: Running, path: str) -> None:
    for model in ("thinker", "always"):
        assert ask(server, path, model, **OFF[path]) == thought(0)
        assert ask(server, path, model, **_option(path, 0)) == thought(0)


def test_a_model_that_always_thinks_may_where_nobody_asks(server: Running) -> None:
    """`/v1/messages` switches thinking off by default, but forbids it only where the request does."""
    fields = {"thinking": None}
    assert ask(server, "/v1/messages", **fields) == thought(0)
    assert ask(server, "/v1/messages", "always", **fields)[0] == "".join(WORDS).strip()


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_budget": -2},
        {"thinking_token_budget": "many"},
        {"thinking_token_budget": 3, "reasoning": {"max_tokens": 4}},
        {"reasoning_budget": 1.5},
    ],
)
def test_wrong_budgets_are_refused_by_name(server: Running, fields: dict[str, Any]) -> None:
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
        reply = server.post(path, {"model": "thinker", **ROUTES[path], **fields})
        assert reply.status == 400
        assert next(iter(fields)) in reply.json["error"]["message"]


def test_streams_end_with_the_count(server: Running) -> None:
    chat: Any = {"model": "thinker", "messages": QUESTION, "stream": True}
    limited = {**chat, "options": {"reasoning_budget": 5}}
    *parts, last = server.post("/api/chat", limited).lines
    assert "".join(part["message"].get("thinking", "") for part in parts) == thought(4)[0]
    assert last["thinking_count"] == 5
    events = _events(server, "/v1/chat/completions", {**limited, "stream_options": {"include_usage": True}})
    assert events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    messages = {**chat, "max_tokens": 90, "thinking": {"type": "enabled", "budget_tokens": 5}}
    usage = [event["usage"] for event in _events(server, "/v1/messages", messages) if "usage" in event]
    assert usage[-1]["output_tokens_details"] == {"thinking_tokens": 5}
    answered = _events(
        server, "/v1/responses", {"model": "thinker", "input": "Q", "stream": True} | {"reasoning_budget": 5}
    )
    assert answered[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == 5


def _events(server: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = server.post(path, body).body.decode().splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


def test_batches(server: Running) -> None:
    route = "/v1/chat/completions"
    bodies = [{"model": "thinker", "messages": QUESTION, "reasoning_budget": count} for count in (3, 6)]
    lines = [
        {"custom_id": str(number), "method": "POST", "url": route, "body": body}
        for number, body in enumerate(bodies)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with client_of(server) as client:
        file = client.files.create(file=("requests.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=route, completion_window="24h")
        done = ended(client, batch.id)
        found = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    replies = {each["custom_id"]: told(route, each["response"]["body"]) for each in found}
    assert replies == {"0": thought(2), "1": thought(5)}


def test_several_answers_have_a_budget_each(server: Running) -> None:
    body = {"model": "thinker", "messages": QUESTION, "n": 3, "reasoning_budget": 5}
    reply = server.post("/v1/chat/completions", body).json
    assert [choice["message"]["reasoning"] for choice in reply["choices"]] == [thought(4)[0]] * 3
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 15


def test_a_message_before_the_end(server: Running) -> None:
    fields = {"reasoning_budget": 3, "reasoning_budget_message": "stop"}
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
        assert ask(server, path, **fields)[:2] == ("t0 t1 stop", "Wait. ok.")
    assert ask(server, "/api/chat", options=fields)[:2] == ("t0 t1 stop", "Wait. ok.")
