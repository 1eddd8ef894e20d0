"""Two hundred simulated worlds, and replays of some: `python -m tests.simulation` runs any number."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2]
_STEPS = ("--steps", "3")


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run worlds in a separate process, because they replace threads and time."""
    command = [sys.executable, "-m", "tests.simulation", *arguments, *_STEPS]
    return subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def worlds() -> subprocess.CompletedProcess[str]:
    return simulate("--seeds", "0:200", "--digests")


def test_worlds_keep_the_promises_of_the_server(worlds: subprocess.CompletedProcess[str]) -> None:
    assert (worlds.returncode, worlds.stderr) == (0, ""), worlds.stdout
    (compared,) = re.findall(r"(\d+) answers compared", worlds.stdout)
    assert int(compared) > 100


def test_a_replay_has_the_same_trace(worlds: subprocess.CompletedProcess[str]) -> None:
    again = simulate("--seeds", "195:200", "--digests").stdout.splitlines()
    assert len(again) == 6
    assert again[:5] == worlds.stdout.splitlines()[195:200]


def test_a_wrong_answer_fails_with_the_command_that_replays_it() -> None:
    done = simulate("--seeds", "0:9", "--wrong")
    assert done.returncode == 1
    assert re.match(r"python -m tests.simulation --seed \d --steps 3: WorldError: .* and alone", done.stdout)
