"""A process that dies at any moment leaves a valid store."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaski.store.store import Store
from tests.store.stores import assert_valid

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kills", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_a_killed_process_leaves_a_valid_store(tmp_path: Path, kills: int) -> None:
    chance, store = random.Random(kills), Store(tmp_path)
    for seed in range(kills):
        command = [sys.executable, "-m", "tests.store.change_forever", str(tmp_path), str(seed)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            time.sleep(chance.uniform(0, 0.05))
            process.kill()
        assert_valid(store)
    # Locks end with their process, and what it left behind can be cleaned up.
    assert store.prune() == (0, 0)


def test_two_processes_change_one_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    commands = [[sys.executable, "-m", "tests.store.change_forever", str(tmp_path), seed] for seed in "12"]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for command in commands]
    for process in processes:
        assert process.stdout is not None
        for _ in range(50):
            assert process.stdout.readline() == b"\n"
    for process in processes:
        process.kill()
        process.communicate()
    assert_valid(store)
