"""The interface to the replicas of a model, independent of the system that places them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from chaski.cluster.links import Address

__all__ = ["Member", "Members", "node_label"]


class Member(Struct, frozen=True, kw_only=True):
    """A replica that accepts connections, or one that is loading or failed to load the model.

    name        unique among all replicas, now and later
    node        the machine that it runs on; "" stands for a replica that fits on none
    pid         its process there
    places      answers that it computes in parallel
    share       loaded share of the model, from 0 to 1; connections are possible at 1
    is_leaving  it finishes its answers and accepts no more requests
    problem     class and message of its loading error; None without an error
    generation  starts at 0 and increases with each replacement of the model's replicas
    shards      node and process of each shard, if several nodes compute the replica
    """

    name: str
    address: Address
    node: str
    pid: int
    places: int
    share: float = 1.0
    is_leaving: bool = False
    problem: tuple[str, str] | None = None
    generation: int = 0
    shards: tuple[tuple[str, int], ...] = ()


def node_label(name: str, address: str) -> str:
    """Return the label of a node, which includes the address because machine names may be equal."""
    return f"{name} ({address})"


class Members(Protocol):
    """The replicas of one model. Network failures raise no errors."""

    @property
    def key(self) -> bytes:
        """The key that authenticates callers."""

    def list(self) -> Sequence[Member] | None:
        """Return the replicas, or None if they are currently unknown."""

    def scale(self, number: int) -> None:
        """Request a number of replicas. The change takes effect later."""

    def replace(self, generation: int) -> None:
        """Replace all older replicas with replicas of a generation, a few at a time."""

    def close(self) -> None:
        """End all replicas."""
