"""What a cluster tells of the replicas of a model, whoever places and watches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from chaski.cluster.links import Address

__all__ = ["Member", "Members", "node_label"]


class Member(Struct, frozen=True, kw_only=True):
    """A replica that can be connected to, or one that could not load the model.

    name      unlike that of any other replica, now and later
    node      the machine that it runs on
    pid       its process there
    places    answers that it computes at a time
    share     how much of the model is loaded, from 0 to 1; it can be connected to when all of it is
    is_leaving  it answers what it has, and takes no more
    problem   the class of the error of loading, and its message; None where it is loaded
    shards    the node and the process of each shard, where several nodes compute the replica
    generation  0, and one more each time that the replicas of the model are replaced
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
    """Return how a node is called: names of machines may be alike."""
    return f"{name} ({address})"


class Members(Protocol):
    """The replicas of one model. Methods raise nothing where the network fails."""

    @property
    def key(self) -> bytes:
        """The key by which they know who may ask them."""

    def list(self) -> Sequence[Member] | None:
        """Return the replicas; None where nobody can tell at the moment."""

    def scale(self, number: int) -> None:
        """Have so many replicas, sooner or later."""

    def replace(self, generation: int) -> None:
        """Have replicas of a generation in place of all that are older, a few at a time."""

    def close(self) -> None:
        """End all replicas."""
