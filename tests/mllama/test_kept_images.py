"""Prefixes after images in cross-attention layers: they are restored, and the last image is encoded again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import chaski
from chaski.convert.convert import convert
from chaski.runner.prefix import naming, tiers
from tests.mllama.test_mllama import DATA, png

TEXT = "The runner[img-0] carries the message[img-1] over the mountains and the rivers to the sea. " * 2
GREEDY: dict[str, Any] = {"temperature": 0, "logprobs": True, "num_predict": 12}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("mllama") / "mllama.gguf"
    convert(DATA, target, "F32")
    return target


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    with patch.object(naming, "BLOCK", 16), patch.object(tiers, "_FEWEST", 1):
        yield


def load(path: Path, **options: Any) -> chaski.LLM:
    return chaski.load(path, context=192, threads=1, **options)


def fresh(path: Path, text: str, *names: str) -> chaski.Answer:
    with load(path, prompt_cache=False) as alone:
        return alone.generate(text, [png(name) for name in names], **GREEDY)


def same(a: chaski.Answer, b: chaski.Answer) -> bool:
    return (a.token_ids, a.logprobs) == (b.token_ids, b.logprobs)


def test_it_comes_back_after_a_restart(path: Path) -> None:
    with load(path) as model:
        first = model.generate(TEXT, [png("wide"), png("high")], **GREEDY)
    with load(path) as model:
        again = model.generate(TEXT, [png("wide"), png("high")], **GREEDY)
        assert again.evaluated_tokens == 1
        assert model.engine._in_flight._images is not None
        assert model.engine._in_flight._images.num_encoded == 1
        # The cells contain only the last image, so the tokens between both images are restored again.
        beginning = TEXT[: TEXT.index("[img-1]")]
        shorter = model.generate(beginning + " and rests", [png("wide")], **GREEDY)
        assert shorter.cached_tokens > len(model.tokenize("The runner")) + 4
        other = model.generate(TEXT, [png("wide"), png("small")], **GREEDY)
        assert 0 < other.cached_tokens < len(model.tokenize(beginning)) + 2
    assert same(again, first)
    assert same(first, fresh(path, TEXT, "wide", "high"))
    assert same(shorter, fresh(path, beginning + " and rests", "wide"))
    assert same(other, fresh(path, TEXT, "wide", "small"))


def test_another_prompt_takes_over_what_came_back(path: Path) -> None:
    behind = TEXT + "There he waits"
    with load(path, parallel=2) as model:
        model.generate(TEXT, [png("wide"), png("high")], **GREEDY)
    with load(path, parallel=2) as model:
        events = model.stream(behind, [png("wide"), png("high")], **GREEDY)
        begun = [next(events)]
        beside = model.generate(TEXT, [png("wide"), png("high")], **GREEDY)
        begun += list(events)
        last = begun[-1]
        assert isinstance(last, chaski.Done)
        assert last.disk_tokens > 30
        assert beside.evaluated_tokens == 1
    assert same(beside, fresh(path, TEXT, "wide", "high"))
    tokens = tuple(token for event in begun if isinstance(event, chaski.Text) for token in event.token_ids)
    assert tokens == fresh(path, behind, "wide", "high").token_ids


def test_it_comes_back_from_a_saved_state(path: Path, tmp_path: Path) -> None:
    pictures = [png("wide"), png("high")]
    with load(path) as model:
        saved = model.save_state(tmp_path / "seen.state", TEXT, pictures, no_store=True)
    with load(path) as model:
        assert model.load_state(tmp_path / "seen.state").tokens == saved.tokens
        again = model.generate(TEXT, pictures, **GREEDY)
        assert (again.done.memory_tokens, again.evaluated_tokens) == (saved.tokens - 1, 1)
        other = model.generate(TEXT, pictures[::-1], **GREEDY)
        assert other.done.memory_tokens < len(model.tokenize("The runner")) + 1
    assert same(again, fresh(path, TEXT, "wide", "high"))
    assert same(other, fresh(path, TEXT, "high", "wide"))
