"""Members in threads of this process, each with its own backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from chaski.ml import CPUOptions, open_backend
from chaski.ml.backend import Backend, BackendOptions
from chaski.ml.sharded.serving import MemberServer

__all__ = ["KEY", "Nodes", "running_nodes"]

KEY = b"members of a test know this key."


def open_cpu(options: BackendOptions) -> Backend:
    return open_backend("cpu", options, CPUOptions(threads=1))


class Nodes:
    """Running members, and the file with their key."""

    def __init__(self, servers: Sequence[MemberServer], key_file: Path) -> None:
        self.servers = servers
        self.key_file = key_file

    def use(
        self, monkeypatch: pytest.MonkeyPatch, split: str, count: int, shares: Sequence[int] | None = None
    ) -> None:
        """Let this many members, with these shares, compute models that are loaded from now on."""
        addresses = [f"127.0.0.1:{server.port}" for server in self.servers[:count]]
        if shares is not None:
            addresses = [f"{address}={share}" for address, share in zip(addresses, shares, strict=True)]
        monkeypatch.setenv("CHASKI_NODES", ",".join(addresses))
        monkeypatch.setenv("CHASKI_NODES_KEY", str(self.key_file))
        monkeypatch.setenv("CHASKI_SPLIT", split)


@contextmanager
def running_nodes(folder: Path, count: int) -> Iterator[Nodes]:
    """Run this many members until the end of the block."""
    key_file = folder / "nodes.key"
    key_file.write_bytes(KEY)
    key_file.chmod(0o600)
    with ExitStack() as undo:
        servers = []
        for _ in range(count):
            servers.append(MemberServer("127.0.0.1", 0, KEY, open_cpu))
            undo.callback(servers[-1].close)
        yield Nodes(servers, key_file)
