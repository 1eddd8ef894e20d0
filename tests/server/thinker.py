"""Fixtures to import: a served model with thinking and tools, and set answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

__all__ = ["TEMPLATE", "WEATHER", "client_of", "fake", "faked", "fresh", "script"]

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}"
    "[assistant]{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory, script: Script) -> Iterator[Running]:
    """Run a server whose model supports thinking and tools, and writes the answers of `script`."""
    folder = tmp_path_factory.mktemp("fake")
    file = write_tiny_llama(folder / "thinker.gguf", chat_template=TEMPLATE)
    for _ in create(Store(folder), ModelName.parse("thinker"), Recipe(sources=[file])):
        pass
    with running(Settings(address=SOMEWHERE), folder, script.open) as server:
        yield server


@pytest.fixture(autouse=True)
def fresh(script: Script) -> None:
    script.pieces, script.reason, script.asked = ("hello",), "stop", []


def client_of(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


@pytest.fixture(scope="module")
def faked(fake: Running) -> Iterator[openai.OpenAI]:
    with client_of(fake) as found:
        yield found
