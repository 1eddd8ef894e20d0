"""Roles in any order from clients, for a model whose template requires alternating roles."""

from __future__ import annotations

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

STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% elif m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
SYSTEM: Any = {"role": "system", "content": "be kind"}
TURNS: Any = [
    {"role": "assistant", "content": "welcome"},
    {"role": "user", "content": "one"},
    {"role": "user", "content": "two"},
]
WRITTEN = "[user]be kind[assistant]welcome[user]one\n\ntwo"
# A later system message stays in its place, so that earlier tokens are not recomputed.
LATE = "[user][assistant]welcome[user]one\n\ntwo\n\nbe kind"


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


@pytest.mark.parametrize(
    ("path", "fields", "written"),
    [
        ("/api/chat", {"messages": [SYSTEM, *TURNS], "stream": False}, WRITTEN),
        ("/v1/chat/completions", {"messages": [SYSTEM, *TURNS]}, WRITTEN),
        ("/v1/chat/completions", {"messages": [*TURNS, {"role": "developer", "content": "be kind"}]}, LATE),
        ("/v1/responses", {"instructions": "be kind", "input": TURNS}, WRITTEN),
        ("/v1/messages", {"system": "be kind", "messages": TURNS, "max_tokens": 5}, WRITTEN),
        ("/v1/messages", {"messages": [*TURNS, SYSTEM], "max_tokens": 5}, LATE),
    ],
)
def test_every_api_merges_turns(
    server: Running, script: Script, path: str, fields: dict[str, Any], written: str
) -> None:
    assert server.post(path, {"model": "strict", **fields}).status == 200
    prompt = [call for call in script.asked if isinstance(call, Generate)][-1].prompt
    assert bytes(prompt).decode() == written


def test_python_merges_the_same_turns(file: Path) -> None:
    with chaski.load(file) as model:
        asked: Any = {"num_predict": 2, "temperature": 0.0}
        merged = model.chat([SYSTEM, *TURNS], **asked)
        assert merged.prompt_tokens == model.generate(WRITTEN, **asked).prompt_tokens
        assert merged.text == model.generate(WRITTEN, **asked).text
