"""Blocks that are held for a time: the blocks evicted before them, and their end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import chaski
from chaski.runner.prefix import naming, tiers
from chaski.runner.prefix.block_files import FiledBlock
from chaski.runner.prefix.folders import hold_file, make_room


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def names(*words: str) -> list[bytes]:
    return [word.encode() for word in words]


def file(root: Path, name: str, before: str, used: float, hold: float = 0.0) -> Path:
    filed = FiledBlock(name.encode() * 16, before.encode() * 16, 0, 16, (((0, 16),),))
    path = root / "model" / filed.file_name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(10))
    os.utime(path, (used - 1, used))
    hold_file(path, int(used * 1e9), hold)
    return path


def left(paths: list[Path]) -> list[bool]:
    return [path.exists() for path in paths]


def test_files_are_held_by_their_times(tmp_path: Path) -> None:
    now = time.time()
    old = file(tmp_path, "a", "r", now - 200, 300)
    behind = file(tmp_path, "b", "a", now - 200.1, 300)
    new = file(tmp_path, "c", "r", now - 1)
    expired = file(tmp_path, "d", "r", now - 400, 300)
    assert make_room(tmp_path, 40) == 40
    assert make_room(tmp_path, 39) == 30
    assert left([old, behind, new, expired]) == [True, True, True, False]
    assert make_room(tmp_path, 29) == 20
    assert left([old, behind, new]) == [True, False, True], "half of 29 bytes are one block"


def test_a_held_file_is_used_and_held_again(tmp_path: Path) -> None:
    now = time.time()
    path = file(tmp_path, "a", "r", now - 200, 300)
    hold_file(path, int(now * 1e9))
    assert path.stat().st_atime - path.stat().st_mtime == pytest.approx(300, abs=0.01)
    assert path.stat().st_mtime == pytest.approx(now, abs=0.01)
    hold_file(path, int(now * 1e9), 3600)
    hold_file(path, int(now * 1e9), 300)
    assert path.stat().st_atime - path.stat().st_mtime == pytest.approx(3600, abs=0.01)


def test_names_in_a_circle_end(tmp_path: Path) -> None:
    """chaski never writes such files, but others might."""
    now = time.time()
    paths = [
        file(tmp_path, "a", "b", now, 300),
        file(tmp_path, "b", "a", now, 300),
        file(tmp_path, "c", "c", now, 300),
    ]
    paths.append(file(tmp_path, "d", "r", now))
    assert make_room(tmp_path, 30) == 30
    assert left(paths) == [True, True, True, False]


@pytest.mark.parametrize("ahead", [-5000.0, 5000.0, 10.0**8])
def test_a_file_of_another_time_is_not_held(tmp_path: Path, ahead: float) -> None:
    """The clock was changed, or another program has set the times."""
    now = time.time()
    path, other = file(tmp_path, "a", "r", now - 10), file(tmp_path, "b", "r", now)
    os.utime(path, (now + ahead + 300, now - 10))
    assert make_room(tmp_path, 10) == 10
    assert left([path, other]) == [False, True]
    with patch.object(time, "time", lambda: now - ahead):
        assert make_room(tmp_path, 0) == 0


PROMPT = [int(token) for token in np.random.default_rng(3).integers(5, 200, 90)]
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 4}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    with patch.object(naming, "BLOCK", 16), patch.object(tiers, "_FEWEST", 1):
        yield tmp_path / "models" / "chaski" / "prefix-cache"


def held(model: chaski.LLM, prompt: list[int], *holds: tuple[int, int]) -> chaski.Answer:
    """Answer a prompt whose first tokens are held."""
    made = model.prompts.generation

    def generation(prepared: Any, *more: Any) -> Any:
        sequence = made(prepared)
        sequence.holds = holds
        return sequence

    with patch.object(model.prompts, "generation", generation):
        return model.generate(prompt, **GREEDY)


def test_a_held_prefix_outlives_others_in_memory(
    tiny_llama: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "memory")
    clock, random = Clock(), np.random.default_rng(4)
    others = [[int(token) for token in random.integers(5, 200, 90)] for _ in range(12)]
    with chaski.load(tiny_llama, context=256) as model:
        assert model.engine.tiers is not None
        tree = model.engine.tiers.tree
        tree.clock = clock
        first = held(model, PROMPT, (80, 300), (60, 3600))
        assert first.done.held_tokens == ((80, 300), (60, 3600))
        tree.max_bytes = 3 * tree.num_bytes
        for other in others:
            model.generate(other, **GREEDY)
        again = model.generate(PROMPT, **GREEDY)
        assert again.token_ids == first.token_ids
        assert 80 <= again.done.memory_tokens < len(PROMPT)
        clock.now += 301  # 60 tokens are held for an hour
        for other in others:
            model.generate(other, **GREEDY)
        again = model.generate(PROMPT, **GREEDY)
        assert again.done.memory_tokens == 64, "all of the block in which the mark is"
        clock.now += 3601
        for other in others:
            model.generate(other, **GREEDY)
        assert model.generate(PROMPT, **GREEDY).done.memory_tokens == 0


def test_a_held_prefix_outlives_the_process_and_others_in_files(tiny_llama: Path, store: Path) -> None:
    with chaski.load(tiny_llama, context=256) as model:
        first = held(model, PROMPT, (50, 300))
    files = [*store.glob("*/*.block")]
    is_held = {path: path.stat().st_atime > time.time() for path in files}
    assert sum(is_held.values()) == 4, "three whole blocks, and that in which the mark is"
    with chaski.load(tiny_llama, context=256) as model:
        model.generate(PROMPT[::-1], **GREEDY)
    total = sum(path.stat().st_size for path in store.glob("*/*.block"))
    make_room(store, total * 3 // 4)
    assert all(path.exists() for path in files if is_held[path])
    assert not all(path.exists() for path in files)
    with chaski.load(tiny_llama, context=256) as model:
        again = model.generate(PROMPT, **GREEDY)
    assert again.token_ids == first.token_ids
    assert again.done.disk_tokens >= 50


def test_nothing_is_held_without_tiers(
    tiny_llama: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "off")
    with chaski.load(tiny_llama, context=256) as model:
        assert held(model, PROMPT, (50, 300)).done.held_tokens == ()
