"""The content of the directory: replicas, what servers want, and the key of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from msgspec import Struct

from chaski.cluster.members import Member
from chaski.cluster.plan import Amount

__all__ = ["Claim", "Entries", "Listed"]

# Seconds after its last registration for which a replica is listed.
_FORGET = 10.0
# Seconds after its last renewal for which a server wants its models.
_LEASE = 15.0


class Claim(Struct, frozen=True):
    """An application that a server wants, its model, and what each part of a replica reserves."""

    application: str
    model: str
    parts: tuple[Amount, ...]


class Listed(Struct, frozen=True):
    """The content of the directory.

    members  the replicas of each application
    claims   what each server wants
    known    the last claim of each application, also if no server wants it any more
    """

    members: dict[str, list[Member]]
    claims: dict[str, Sequence[Claim]]
    known: dict[str, Claim]


class Entries:
    """The entries of a cluster. One Ray actor has them."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._entries: dict[str, dict[str, tuple[float, Member]]] = {}
        self._leases: dict[str, tuple[float, Sequence[Claim]]] = {}
        self._known: dict[str, Claim] = {}

    def key(self, known: bytes) -> bytes:
        """Return the key of the cluster. An actor without a key adopts `known`."""
        if self._key is None:
            self._key = known
        return self._key

    def enter(self, model: str, member: Member, key: bytes) -> None:
        """Add or update a replica of a model."""
        self.key(key)
        self._entries.setdefault(model, {})[member.name] = monotonic(), member

    def renew(self, server: str, claims: Sequence[Claim], key: bytes) -> Listed:
        """Note what a server wants, instead of what it wanted before; return the content of the directory."""
        self.key(key)
        now = monotonic()
        self._leases[server] = now, claims
        self._leases = {name: each for name, each in self._leases.items() if now - each[0] <= _LEASE}
        for entries in self._entries.values():
            for name in [name for name, (at, _) in entries.items() if now - at > _FORGET]:
                del entries[name]
        self._entries = {model: entries for model, entries in self._entries.items() if entries}
        wanted = {claim.application: claim for _, each in self._leases.values() for claim in each}
        self._known = {
            model: claim for model, claim in self._known.items() if model in self._entries
        } | wanted
        return Listed(
            {model: [member for _, member in each.values()] for model, each in self._entries.items()},
            {name: each for name, (_, each) in self._leases.items() if each},
            self._known,
        )

    def forget(self, model: str) -> None:
        """Forget all replicas of a model."""
        self._entries.pop(model, None)
