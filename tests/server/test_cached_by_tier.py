"""The tiers of cached prompt tokens in replies of each dialect, also in streams."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

from chaski.address import Address
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests import tiny_llama
from tests.server.running import Running, running

# The most tokens that all prompts of a dialect share: those of their template.
MOST_IN_COMMON = 12
STAGES = ("computed", "cells", "memory", "disk")

Body = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """A route, its request for a text, and the place of its usage with the names of the counts.

    `counts` are the prompt tokens and the cached ones; Anthropic's first count excludes the cached ones.
    """

    route: str
    asks: Callable[[str], Body]
    usage: Callable[[Any], Any]
    counts: tuple[str, str]
    streams: Mapping[str, Any]


def _whole(reply: Any) -> Any:
    return reply


def _usage(reply: Any) -> Any:
    return reply["usage"]


def _details(name: str) -> Callable[[Any], Any]:
    """Return the counts of all tokens and of the cached ones together."""
    return lambda reply: {**_usage(reply), **_usage(reply)[name]}


def _turns(text: str) -> list[Body]:
    return [{"role": "user", "content": text}]


OLLAMA = ("prompt_eval_count", "prompt_cached_count")
OPENAI = ("prompt_tokens", "cached_tokens")
STREAMED = {"stream": True}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
ONE = {"num_predict": 1}

DIALECTS = {
    "Ollama's chat": Dialect(
        "/api/chat",
        lambda text: {"messages": _turns(text), "options": ONE, "stream": False},
        _whole,
        OLLAMA,
        STREAMED,
    ),
    "Ollama's generate": Dialect(
        "/api/generate",
        lambda text: {"prompt": text, "options": ONE, "stream": False},
        _whole,
        OLLAMA,
        STREAMED,
    ),
    "OpenAI's chat": Dialect(
        "/v1/chat/completions",
        lambda text: {"messages": _turns(text), "max_tokens": 1},
        _details("prompt_tokens_details"),
        OPENAI,
        WITH_USAGE,
    ),
    "OpenAI's completions": Dialect(
        "/v1/completions",
        lambda text: {"prompt": text, "max_tokens": 1},
        _details("prompt_tokens_details"),
        OPENAI,
        WITH_USAGE,
    ),
    "OpenAI's Responses": Dialect(
        "/v1/responses",
        lambda text: {"input": text, "max_output_tokens": 1},
        lambda reply: _details("input_tokens_details")(reply.get("response", reply)),
        ("input_tokens", "cached_tokens"),
        STREAMED,
    ),
    "Anthropic's": Dialect(
        "/v1/messages",
        lambda text: {"messages": _turns(text), "max_tokens": 1},
        _usage,
        ("input_tokens", "cache_read_input_tokens"),
        STREAMED,
    ),
    "llama.cpp's": Dialect(
        "/infill",
        lambda text: {"input_prefix": text, "input_suffix": "", "n_predict": 1},
        _whole,
        ("tokens_evaluated", "tokens_cached"),
        STREAMED,
    ),
}


@dataclass
class Counts:
    """The counts of a reply: prompt tokens, cached ones, and those by tier, if reported."""

    prompt: int
    cached: int
    by_tier: Mapping[str, int] | None


Told = dict[tuple[str, str, bool], Counts]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Return the counts of each dialect in each stage, whole and streamed."""
    folder = tmp_path_factory.mktemp("tiers")
    entries: dict[str, object] = {"llama__context_length": 1024}
    entries |= {
        f"tokenizer__ggml__fim_{name}_token_id": 10 + n for n, name in enumerate(("pre", "suf", "mid"))
    }
    with patch.object(tiny_llama, "FFN", 8192):  # computing a prompt takes longer than reading it
        recipe = Recipe(sources=[tiny_llama.write_tiny_llama(folder / "tiny.gguf", **entries)])
    for _ in create(Store(folder), ModelName.parse("tiny"), recipe):
        pass
    told: Told = {}
    texts = {(name, streams): _text(n) for n, (name, streams) in enumerate(_each())}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
        monkeypatch.setenv("CHASKI_PREFIX_CACHE_MEMORY", "100MB")
        monkeypatch.setenv("CHASKI_PREFIX_CACHE_DISK", "100MB")
        monkeypatch.setenv("OLLAMA_MODELS", str(folder))
        settings = Settings(address=Address("127.0.0.1", 0), parallel=1)
        with running(settings, folder) as server:
            for name, streams in _each():
                for stage in ("computed", "cells"):
                    told[name, stage, streams] = _ask(server, name, texts[name, streams], streams)
            for name, streams in _each():  # each prompt replaces the previous one in the only slot
                told[name, "memory", streams] = _ask(server, name, texts[name, streams], streams)
        with running(settings, folder) as server:
            for name, streams in _each():
                told[name, "disk", streams] = _ask(server, name, texts[name, streams], streams)
    return told


def _each() -> list[tuple[str, bool]]:
    return [(name, streams) for name in DIALECTS for streams in (False, True)]


def _text(number: int) -> str:
    """Return a text of 300 letters with a unique beginning."""
    letters = random.Random(number)
    return chr(ord("A") + number) + "".join(letters.choices(string.ascii_uppercase, k=299))


def _ask(server: Running, name: str, text: str, streams: bool) -> Counts:
    dialect = DIALECTS[name]
    body = {"model": "tiny", **dialect.asks(text), **(dialect.streams if streams else {})}
    reply = server.post(dialect.route, body)
    assert reply.status == 200, reply.body
    usage = _last(reply.body, dialect.usage) if streams else dialect.usage(reply.json)
    prompt, cached = (usage.get(count, 0) for count in dialect.counts)  # Ollama omits zeros
    return Counts(prompt + cached * (name == "Anthropic's"), cached, usage.get("cached_tokens_by_tier"))


def _last(stream: bytes, usage: Callable[[Any], Any]) -> Any:
    """Return the usage of the last event with one."""
    found = None
    for line in stream.decode().splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            try:
                found = usage(json.loads(data)) or found
            except (KeyError, TypeError):
                continue
    assert found is not None, stream
    return found


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", DIALECTS)
def test_usage_tells_where_cached_tokens_were(told: Told, name: str, streams: bool) -> None:
    computed, cells, memory, disk = (told[name, stage, streams] for stage in STAGES)
    assert computed.prompt == cells.prompt == memory.prompt == disk.prompt > 300
    assert computed.cached <= MOST_IN_COMMON
    assert cells.cached == memory.cached == disk.cached == computed.prompt - 1
    assert computed.by_tier is cells.by_tier is None  # present only if memory or disk had any
    for counts, tier in ((memory, "memory"), (disk, "disk")):
        assert counts.by_tier is not None
        assert sum(counts.by_tier.values()) == counts.by_tier["cells"] + counts.by_tier[tier] == counts.cached
        assert counts.by_tier["cells"] <= MOST_IN_COMMON
