"""The nodes of a split model, named in the environment of the processes that load it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import NamedTemporaryFile

from chaski.cluster.links import Address

__all__ = ["key_of_nodes", "named_nodes"]


def key_of_nodes(key: bytes) -> bytes:
    """Return the text key that authenticates the nodes of a cluster with this key."""
    return key.hex().encode()


@contextmanager
def named_nodes(addresses: Sequence[Address], split: str, key: bytes) -> Iterator[None]:
    """Use these nodes for all models that this process and its children load within the block.

    All nodes get an equal share of the layers. `key` is the cluster's key. Workers read it from a file that
    only this user can read and that is removed at the end of the block.
    """
    with NamedTemporaryFile(prefix="chaski-nodes-", suffix=".key") as file:
        file.write(key_of_nodes(key))
        file.flush()
        named = {
            "CHASKI_NODES": ",".join(f"{_host(host)}:{port}=1" for host, port in addresses),
            "CHASKI_NODES_KEY": file.name,
            "CHASKI_SPLIT": split,
        }
        before = {name: os.environ[name] for name in named if name in os.environ}
        os.environ |= named
        try:
            yield
        finally:
            for name in named.keys() - before.keys():
                del os.environ[name]
            os.environ |= before


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
