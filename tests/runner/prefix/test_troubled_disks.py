"""Disks that are full, read-only or corrupt: a note in the log, and unchanged answers.

Disks for a single process are mounted in a namespace; without namespaces, such tests are skipped.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import chaski
from chaski.runner.prefix import naming

ROOT = Path(__file__).parents[3]
PROMPTS = [[int(token) for token in np.random.default_rng(seed).integers(5, 200, 90)] for seed in (1, 2)]
NO_MOUNT = 77


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of the store, with prefix files."""
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
    monkeypatch.setenv("CHASKI_PREFIX_CACHE_DISK", "1GB")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture(scope="module")
def fresh(tiny_llama: Path) -> list[list[int]]:
    """Return the answers to the prompts without a cache."""
    with chaski.load(tiny_llama, context=256, threads=1, prompt_cache=False) as model:
        return [said(model, prompt) for prompt in PROMPTS]


def said(model: chaski.LLM, prompt: list[int]) -> list[int]:
    return list(model.generate(prompt, temperature=0, num_predict=8).token_ids)


def ask(model: Path, before: str, *, mounts: bool = True) -> Any:
    """Run `asking.py` after a shell command, in a separate namespace if the command mounts a disk."""
    asking = Path(__file__).with_name("asking.py")
    command = [sys.executable, str(asking), str(model), json.dumps(PROMPTS)]
    around = ["unshare", "--map-root-user", "--mount"] if mounts else []
    if around and (shutil.which("unshare") is None or subprocess.run([*around, "true"]).returncode):
        pytest.skip("there are no namespaces to mount a disk in")
    places = str(ROOT), os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [*around, "sh", "-c", f'{before} || exit {NO_MOUNT}; exec "$@"', "sh", *command],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))},
        capture_output=True,
        text=True,
    )
    if done.returncode == NO_MOUNT:
        pytest.skip(f"no disk can be mounted: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(told: Any, fresh: list[list[int]], number: int) -> None:
    """Check that answers are right, that each start logs one error, and that no file is incomplete."""
    assert [each["tokens"] for each in told["said"]] == 2 * fresh
    assert len(told["notes"]) == 2, told["notes"]
    assert all(f"{os.strerror(number)}; answers do not need it" in note for note in told["notes"])
    assert not any(name.endswith(".tmp") for name in told["files"])


def blocks(told: Any) -> list[str]:
    return [name for name in told["files"] if name.endswith(".block")]


def test_a_full_disk_keeps_what_found_room(tiny_llama: Path, store: Path, fresh: list[list[int]]) -> None:
    told = ask(tiny_llama, 'mount -t tmpfs -o size=64k tmpfs "$OLLAMA_MODELS"')
    check(told, fresh, errno.ENOSPC)
    assert blocks(told)
    first, _, again, _ = (each["disk_tokens"] for each in told["said"])
    assert first == 0 < again


def test_a_disk_without_any_room_keeps_nothing(tiny_llama: Path, store: Path, fresh: list[list[int]]) -> None:
    told = ask(tiny_llama, 'mount -t tmpfs -o nr_inodes=1 tmpfs "$OLLAMA_MODELS"')
    check(told, fresh, errno.ENOSPC)
    assert told["files"] == []


def test_a_read_only_disk_is_read(tiny_llama: Path, store: Path, fresh: list[list[int]]) -> None:
    with small_blocks(), chaski.load(tiny_llama, context=256, threads=1) as model:
        assert said(model, PROMPTS[0]) == fresh[0]
    kept = sorted(path.name for path in store.rglob("*.block"))
    assert kept
    bound = 'mount --bind "$OLLAMA_MODELS" "$OLLAMA_MODELS" && mount -o remount,bind,ro "$OLLAMA_MODELS"'
    told = ask(tiny_llama, bound)
    check(told, fresh, errno.EROFS)
    assert sorted(blocks(told)) == kept
    assert [each["disk_tokens"] for each in told["said"]] == 2 * [len(PROMPTS[0]) - 1, 0]


def test_an_empty_read_only_disk_is_left_alone(tiny_llama: Path, store: Path, fresh: list[list[int]]) -> None:
    told = ask(tiny_llama, 'mount -t tmpfs -o ro tmpfs "$OLLAMA_MODELS"')
    check(told, fresh, errno.EROFS)
    assert told["files"] == []


def test_files_that_may_not_be_large_enough(tiny_llama: Path, store: Path, fresh: list[list[int]]) -> None:
    told = ask(tiny_llama, "ulimit -f 8", mounts=False)  # of 512 bytes each
    check(told, fresh, errno.EFBIG)
    assert set(told["files"]) <= {"model.txt", "written.json", "speed.txt"} | set(blocks(told))
    assert all(int(name.split("-")[3]) < 16 for name in blocks(told))


def small_blocks() -> Any:
    return patch.object(naming, "BLOCK", 16)


def a_file_for_all(store: Path, model: Path) -> None:
    (store / "chaski").write_text("a file")


def a_file_for_the_cache(store: Path, model: Path) -> None:
    (store / "chaski").mkdir()
    (store / "chaski" / "prefix-cache").write_text("a file")


def a_file_for_the_model(store: Path, model: Path) -> None:
    folder = folder_of(store, model)
    shutil.rmtree(folder)
    folder.write_text("a file")


def a_folder_for_the_description(store: Path, model: Path) -> None:
    folder = folder_of(store, model)
    shutil.rmtree(folder)
    (folder / "model.txt" / "within").mkdir(parents=True)


def a_folder_for_the_day(store: Path, model: Path) -> None:
    (store / "chaski" / "prefix-cache" / "written.json").mkdir(parents=True)


def folder_of(store: Path, model: Path) -> Path:
    """Create the folder of the model; return it."""
    with small_blocks(), chaski.load(model, context=256, threads=1) as loaded:
        said(loaded, PROMPTS[1])
    (folder,) = (path for path in (store / "chaski" / "prefix-cache").iterdir() if path.is_dir())
    return folder


@pytest.mark.parametrize(
    "mess",
    [
        a_file_for_all,
        a_file_for_the_cache,
        a_file_for_the_model,
        a_folder_for_the_description,
        a_folder_for_the_day,
    ],
)
def test_what_is_in_the_way_costs_a_note(
    tiny_llama: Path,
    store: Path,
    fresh: list[list[int]],
    caplog: pytest.LogCaptureFixture,
    mess: Callable[[Path, Path], None],
) -> None:
    mess(store, tiny_llama)
    before = {path for path in store.rglob("*") if path.suffix != ".txt"}
    with small_blocks(), chaski.load(tiny_llama, context=256, threads=1) as model:
        assert [said(model, prompt) for prompt in PROMPTS] == fresh
        assert model.engine.tiers is not None
        assert model.engine.tiers.disk is not None
        model.engine.tiers.disk.settle(10)
        assert model.engine.tiers.disk.num_failed == 1
    (note,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert "answers do not need it" in note
    assert not list(store.rglob("*.tmp"))
    assert before <= set(store.rglob("*"))


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "\udcff",
        "5",
        '{"day": 5}',
        "[" * 5000,
        '{"day": "%", "bytes": 1e999}',
        '{"day": "%", "bytes": -9}',
    ],
)
def test_a_damaged_count_of_the_day_begins_anew(
    tiny_llama: Path, store: Path, fresh: list[list[int]], damage: str
) -> None:
    log = store / "chaski" / "prefix-cache" / "written.json"
    log.parent.mkdir(parents=True)
    log.write_text(damage.replace("%", datetime.now(UTC).date().isoformat()), errors="surrogateescape")
    with small_blocks(), chaski.load(tiny_llama, context=256, threads=1) as model:
        assert said(model, PROMPTS[0]) == fresh[0]
    written = sum(path.stat().st_size for path in store.rglob("*.block"))
    assert json.loads(log.read_bytes())["bytes"] == written > 0
