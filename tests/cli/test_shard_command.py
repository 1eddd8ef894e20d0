"""`chaski shard`, and commands whose models several shards compute."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaski.cli.main import chaski_command


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.key"
    path.write_text("a key that only these nodes know\n")
    path.chmod(0o600)
    return path


@contextmanager
def shard(key: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a shard; yield its process and address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chaski", "shard", "--listen", "127.0.0.1:0", "--key", str(key)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"CHASKI_THREADS": "1"},
    )
    try:
        assert process.stderr is not None
        told = process.stderr.readline()
        found = re.fullmatch(r".* at (\S+:\d+), reading \d+\.\d GB/s", told.strip())
        assert found is not None, told
        yield found[1], process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def run(*arguments: str) -> str:
    result = CliRunner().invoke(chaski_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.long
def test_two_processes_compute_a_model(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_NODES_KEY", str(key))
    question = ["run", "guide", "how do I use fewer cores?", "--num-predict", "12"]
    alone = run(*question)
    with shard(key) as (first, _), shard(key) as (second, process):
        both = f"{first},{second}"
        assert run(*question, "--nodes", both, "--split", "rows") == alone
        memory = run("show", "guide", "--memory", "--nodes", both, "--split", "layers")
        assert re.search(rf"cells +{first} +{second}", memory)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        result = CliRunner().invoke(chaski_command, [*question, "--nodes", both])
        assert result.exit_code == 1
        assert f"node {second} cannot be reached" in result.output


def test_options(key: Path) -> None:
    for options, told in (
        (["--listen", "nowhere", "--key", str(key)], "is not an address to listen at"),
        ([], "no key is named"),
        (["--key", str(key.with_name("none"))], "cannot be read"),
    ):
        result = CliRunner().invoke(chaski_command, ["shard", *options])
        assert result.exit_code == 1
        assert told in result.output
