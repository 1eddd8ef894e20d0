"""A process that dies at any moment leaves a valid store."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaski.names import ModelName
from chaski.store.store import Store
from tests.store.stores import assert_valid, put_by_hand

ROOT = Path(__file__).parents[2]


@contextmanager
def changing(root: Path, seed: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that changes a store; kill it at the end of the block."""
    command = [sys.executable, "-m", "tests.store.change_forever", str(root), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_changes(process: subprocess.Popen[bytes], count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline() == b"\n"


@pytest.mark.long
@pytest.mark.parametrize("kills", [10, pytest.param(300, marks=pytest.mark.slow)])
def test_a_killed_process_leaves_a_valid_store(tmp_path: Path, kills: int) -> None:
    chance, store = random.Random(kills), Store(tmp_path)
    for seed in range(kills):
        with changing(tmp_path, seed) as process:
            wait_for_changes(process, 1)
            time.sleep(chance.uniform(0, 0.05))
        assert_valid(store)
    # Locks end with their process, and its leftovers can be cleaned up.
    assert store.prune() == (0, 0)


def test_two_processes_change_one_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with changing(tmp_path, 1) as one, changing(tmp_path, 2) as other:
        wait_for_changes(one, 50)
        wait_for_changes(other, 50)
    assert_valid(store)


def test_a_name_never_vanishes_while_it_is_replaced(tmp_path: Path) -> None:
    store, name = Store(tmp_path), ModelName.parse("one")
    put_by_hand(tmp_path, "registry.ollama.ai/library/one/latest", {"model": b"weights"})
    manifests = [store.manifest_bytes(name), store.manifest_bytes(name) + b"\n"]
    is_done = threading.Event()

    def replace() -> None:
        with store.adding():
            for turn in range(60):
                store.put(name, manifests[turn % 2])
        is_done.set()

    thread = threading.Thread(target=replace)
    thread.start()
    while not is_done.is_set():
        assert store.manifest_bytes(name) in manifests
    thread.join()
