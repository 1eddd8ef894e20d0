"""Processes of `chaski shard` on this machine, for benchmarks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

__all__ = ["KEY", "address_of", "models_on", "running_nodes", "written_key"]

KEY = b"what the nodes of a benchmark know"


def written_key(folder: Path) -> Path:
    """Return the file of the key in a folder."""
    path = folder / "nodes.key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


def address_of(node: subprocess.Popen[str]) -> str:
    """Wait until a process of `chaski shard` listens; return its address from its standard error."""
    assert node.stderr is not None
    line = node.stderr.readline()
    found = re.search(r" at (\S+:\d+)", line)
    assert found is not None, f"the node does not say where it listens: {line}"
    return found[1]


@contextmanager
def running_nodes(key: Path, count: int) -> Iterator[Sequence[str]]:
    """Run this many nodes of one thread; yield their addresses."""
    command = [sys.executable, "-m", "chaski", "shard", "--listen", "127.0.0.1:0", "--key", str(key)]
    with ExitStack() as stack:
        addresses = []
        for _ in range(count):
            node = subprocess.Popen([*command, "--threads", "1"], stderr=subprocess.PIPE, text=True)
            stack.callback(node.wait)
            stack.callback(node.kill)
            addresses.append(address_of(node))
        yield addresses


@contextmanager
def models_on(addresses: Sequence[str], key: Path, split: str) -> Iterator[None]:
    """Run nodes that compute the models loaded within the block."""
    given = {"CHASKI_NODES": ",".join(addresses), "CHASKI_NODES_KEY": str(key), "CHASKI_SPLIT": split}
    with patch.dict(os.environ, given):
        yield
