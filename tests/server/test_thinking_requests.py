"""Thinking as requested by clients of `/v1`, and their other variables for a model's template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from chaski.chat.requests import Generate
from chaski.errors import OptionError
from chaski.names import ModelName
from chaski.server.dialects.common.thinking import agreed
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.server.thinker import client_of
from tests.tiny_llama import write_tiny_llama

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}|{{ enable_thinking }}|{{ thinking }}|"
    "{{ reasoning_effort | default('-') }}|{{ style | default('plain') }}|<think>"
)
QUESTION: Any = [{"role": "user", "content": "x"}]
ROUTES: Any = {
    "/v1/chat/completions": {"messages": QUESTION},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 4096},
}
NO, YES, LOW, MAX = "False|False|-", "True|True|-", "True|True|low", "True|True|max"


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, script: Script) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("thinking")
    file = write_tiny_llama(folder / "thinker.gguf", chat_template=TEMPLATE)
    plain = write_tiny_llama(folder / "plain.gguf", chat_template=None)
    for name, recipe in (
        ("thinker", Recipe(sources=[file])),
        ("go", Recipe(sources=[plain], template="{{ .Prompt }}")),
        ("plain", Recipe(sources=[plain])),
    ):
        for _ in create(Store(folder), ModelName.parse(name), recipe):
            pass
    with running(Settings(address=SOMEWHERE), folder, script.open) as found:
        yield found


def prompt_of(script: Script) -> str:
    return bytes([call for call in script.asked if isinstance(call, Generate)][-1].prompt).decode()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"think": False}, NO),
        ({"think": True}, YES),
        ({"think": "low"}, LOW),
        ({"think": "none"}, NO),
        ({"enable_thinking": False}, NO),
        ({"reasoning_effort": "none"}, NO),
        ({"reasoning_effort": "minimal"}, LOW),
        ({"reasoning": {"effort": "xhigh"}}, MAX),
        ({"reasoning": {"enabled": False}}, NO),
        ({"chat_template_kwargs": {"enable_thinking": False}}, NO),
        ({"chat_template_kwargs": {"thinking": False}}, NO),
        ({"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "low"}}, LOW),
        ({"enable_thinking": True, "think": "low", "reasoning": {"effort": "low"}}, LOW),
    ],
)
def test_every_way_to_say_it_is_heard(
    server: Running, script: Script, path: str, fields: dict[str, Any], told: str
) -> None:
    reply = server.post(path, {"model": "thinker", **ROUTES[path], **fields})
    assert reply.status == 200, reply.body
    assert prompt_of(script) == f"x|{told}|plain|<think>"
    assert "x-chaski-ignored" not in reply.headers


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"think": True, "enable_thinking": False}, ("think", "enable_thinking")),
        ({"reasoning_effort": "low", "think": False}, ("reasoning_effort", "think")),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, ("_effort", "reasoning.effort")),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            ("reasoning_effort", "chat_template_kwargs.enable_thinking"),
        ),
        ({"think": "much"}, ("think 'much'",)),
        ({"think": 3}, ("think must be",)),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, ("chat_template_kwargs.enable_thinking",)),
        ({"chat_template_kwargs": {"messages": []}}, ("chat_template_kwargs.messages",)),
        ({"chat_template_kwargs": {"colour": "red"}}, ("chat_template_kwargs.colour",)),
    ],
)
def test_what_contradicts_itself_is_refused(
    server: Running, path: str, fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    reply = server.post(path, {"model": "thinker", **ROUTES[path], **fields})
    assert reply.status == 400
    assert all(name in reply.json["error"]["message"] for name in named)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, NO),
        ({"thinking": {"type": "disabled"}}, NO),
        ({"thinking": {"type": "adaptive"}}, YES),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, YES),
        ({"thinking": {"type": "enabled"}, "output_config": {"effort": "low"}}, LOW),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, NO),
        ({"thinking": {"type": "sometimes"}}, None),
        ({"thinking": {"type": "disabled", "budget_tokens": 2048}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 4095}}, YES),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, None),
        ({"thinking": {"type": "enabled"}, "think": False}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}, "thinking_token_budget": 7}, None),
    ],
)
def test_thinking_as_anthropic_says_it(
    server: Running, script: Script, fields: dict[str, Any], told: str | None
) -> None:
    reply = server.post("/v1/messages", {"model": "thinker", **ROUTES["/v1/messages"], **fields})
    if told is None:
        assert reply.status == 400
        assert "thinking" in reply.json["error"]["message"]
    else:
        assert prompt_of(script) == f"x|{told}|plain|<think>"
        assert "x-chaski-ignored" not in reply.headers


@pytest.mark.parametrize("path", ROUTES)
def test_variables_reach_the_template(server: Running, script: Script, path: str) -> None:
    fields = {"chat_template_kwargs": {"style": "bold", "enable_thinking": False}}
    assert server.post(path, {"model": "thinker", **ROUTES[path], **fields}).status == 200
    assert prompt_of(script) == f"x|{NO}|bold|<think>"
    for model in ("go", "plain"):
        reply = server.post(path, {"model": model, **ROUTES[path], **fields})
        assert reply.status == 400
        assert "chat_template_kwargs.style is no variable" in reply.json["error"]["message"]
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        assert server.post(path, {"model": model, **ROUTES[path], **off}).status == 200


def test_as_the_openai_package_sends_it(server: Running, script: Script) -> None:
    with client_of(server) as client:
        extra: Any = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False, "style": "new"}}}
        client.chat.completions.create(model="thinker", messages=QUESTION, **extra)
        assert prompt_of(script) == f"x|{NO}|new|<think>"
        client.responses.create(model="thinker", input="x", reasoning={"effort": "high"})
        assert prompt_of(script) == "x|True|True|high|plain|<think>"
        with pytest.raises(openai.BadRequestError, match="contradict"):
            client.chat.completions.create(
                model="thinker", messages=QUESTION, reasoning_effort="high", **extra
            )


def test_all_that_is_said_must_agree() -> None:
    assert agreed({"a": None, "b": None}) is None
    assert agreed({"a": True, "b": "low"}) == "low"
    assert agreed({"a": False, "b": None, "c": False}) is False
    with pytest.raises(OptionError, match="a and c contradict"):
        agreed({"a": False, "b": None, "c": "low"})
    with pytest.raises(OptionError, match="b and c contradict"):
        agreed({"a": True, "b": "high", "c": "low"})
