"""Histories that a strict template accepts only after changes, and begun answers, in every API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.chat.requests import Generate
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

# Like Mistral's and Llama's together: ids of nine characters, one call per turn, closed turns.
STRICT = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('ids') }}{% endif %}"
    "#{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "{% if m.role == 'tool' %}#{{ m.tool_call_id }}{% endif %}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
QUESTION: Any = {"role": "user", "content": "warm?"}
BEGUN: Any = {"role": "assistant", "content": "It is "}
FUNCTION: Any = {"name": "look", "parameters": {"type": "object", "properties": {}}}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
BROKEN = '{"city": "Cus'


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("strict") / "strict.gguf", chat_template=STRICT)


@pytest.fixture(scope="module")
def server(file: Path, script: Script) -> Iterator[Running]:
    for _ in create(Store(file.parent), ModelName.parse("strict"), Recipe(sources=[file])):
        pass
    with running(Settings(address=SOMEWHERE), file.parent, script.open) as found:
        yield found


def prompt(server: Running, script: Script, path: str, fields: dict[str, Any]) -> str:
    assert server.post(path, {"model": "strict", **fields}).status == 200
    return bytes([call for call in script.asked if isinstance(call, Generate)][-1].prompt).decode()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/chat", {"messages": [QUESTION, BEGUN], "stream": False}),
        ("/v1/chat/completions", {"messages": [QUESTION, BEGUN]}),
        ("/v1/chat/completions", {"messages": [QUESTION, BEGUN], "continue_final_message": True,
                                  "add_generation_prompt": False}),
        ("/v1/responses", {"input": [QUESTION, BEGUN]}),
        ("/v1/messages", {"messages": [QUESTION, BEGUN], "max_tokens": 5}),
    ],
)  # fmt: skip
def test_the_last_answer_is_continued(
    server: Running, script: Script, path: str, fields: dict[str, Any]
) -> None:
    assert prompt(server, script, path, fields) == "[user]warm?</s>[assistant]It is "


def test_the_last_answer_is_continued_in_python(file: Path) -> None:
    with chaski.load(file) as model:
        asked: Any = {"num_predict": 2, "temperature": 0.0}
        found = model.chat([QUESTION, BEGUN], **asked)
        wanted = model.generate("[user]warm?</s>[assistant]It is ", **asked)
        assert (found.text, found.prompt_tokens) == (wanted.text, wanted.prompt_tokens)


def openai_call(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}


def histories(arguments: str) -> dict[str, dict[str, Any]]:
    """Return two calls with results in another order, in the form of each API."""
    results = [("call_b", "rain"), ("call_a", "sun")]
    ids = ("call_a", "call_b")
    plain = {"role": "assistant", "content": "", "tool_calls": [openai_call(each, arguments) for each in ids]}
    native = {
        **plain,
        "tool_calls": [{"id": each, "function": {"name": "look", "arguments": arguments}} for each in ids],
    }
    told = [{"role": "tool", "tool_call_id": each, "content": text} for each, text in results]
    used = [{"type": "tool_use", "id": each, "name": "look", "input": arguments} for each in ids]
    given = [{"type": "tool_result", "tool_use_id": each, "content": text} for each, text in results]
    calls = [
        {"type": "function_call", "call_id": each, "name": "look", "arguments": arguments} for each in ids
    ]
    outputs = [{"type": "function_call_output", "call_id": each, "output": text} for each, text in results]
    return {
        "/api/chat": {"messages": [QUESTION, native, *told], "tools": TOOLS, "stream": False},
        "/v1/chat/completions": {"messages": [QUESTION, plain, *told], "tools": TOOLS},
        "/v1/responses": {"input": [QUESTION, *calls, *outputs], "tools": [{"type": "function", **FUNCTION}]},
        "/v1/messages": {
            "messages": [
                QUESTION,
                {"role": "assistant", "content": used},
                {"role": "user", "content": given},
            ],
            "tools": [{"name": "look", "input_schema": FUNCTION["parameters"]}],
            "max_tokens": 5,
        },
    }


@pytest.mark.parametrize("arguments", ['{"city": "Cusco"}', BROKEN])
@pytest.mark.parametrize("path", histories(""))
def test_calls_of_every_api_are_taken(server: Running, script: Script, path: str, arguments: str) -> None:
    text = prompt(server, script, path, histories(arguments)[path]).split("[user]")[1]
    shown = re.escape(arguments if arguments != BROKEN else json.dumps(BROKEN))
    turn = rf"\[assistant\]#(\w{{9}}) look {shown}</s>"
    found = re.fullmatch(
        rf"warm\?</s>{turn}\[tool\]sun#(\w{{9}})</s>{turn}\[tool\]rain#(\w{{9}})</s>\[assistant\]", text
    )
    assert found is not None, text
    assert found[1] == found[2] != found[3] == found[4]
