"""Processes of `chaski shard` on this machine, which keep their addresses when they are started again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaski.env import Environment

__all__ = ["ShardProcesses", "shard_processes"]


class ShardProcesses:
    """Nodes of one thread each, by number."""

    def __init__(self, number: int, key: Path) -> None:
        self._key = key
        self.addresses = ["127.0.0.1:0"] * number
        self._processes: list[subprocess.Popen[str] | None] = [None] * number
        for node in range(number):
            self.start(node)

    def environment(self, split: str) -> Environment:
        """Return the environment of a server that uses all nodes."""
        nodes = ",".join(self.addresses)
        named = {"CHASKI_NODES": nodes, "CHASKI_NODES_KEY": str(self._key), "CHASKI_SPLIT": split}
        return Environment.read(named)

    def start(self, node: int) -> None:
        """Start a node, at the address that it had before."""
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "chaski", "shard", "--listen", self.addresses[node]),
                *("--key", str(self._key), "--threads", "1"),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"CHASKI_THREADS": "1"},
        )
        assert process.stderr is not None
        told = process.stderr.readline()
        assert "computes parts of models at" in told, told
        self.addresses[node] = told.split(" at ")[1].split(",")[0].strip()
        self._processes[node] = process

    def send(self, node: int, signal: int) -> None:
        process = self._processes[node]
        assert process is not None
        process.send_signal(signal)

    def kill(self, node: int) -> None:
        """Kill a node (SIGKILL) unless that has been done."""
        process, self._processes[node] = self._processes[node], None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


@contextmanager
def shard_processes(number: int, folder: Path) -> Iterator[ShardProcesses]:
    """Run nodes until the end of the block."""
    key = folder / "nodes.key"
    key.write_text("a key that only the nodes of this test know\n")
    key.chmod(0o600)
    nodes = ShardProcesses(number, key)
    try:
        yield nodes
    finally:
        for node in range(number):
            nodes.kill(node)
