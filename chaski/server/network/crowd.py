"""`Crowd`: the connections of a server, and which of them to close when there are too many.

Whoever opens connections faster than they are answered must not take the server's time from others. So the
choice costs about the same for ten connections and for ten thousand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from chaski.server.network.slowest import Slowest

__all__ = ["Crowd", "Member"]

_MOST_UNREAD = 64
"""Connections with an unread rest of an answer that are passed over in a search for an idle one."""


class Member(Protocol):
    """A connection, as the choice sees it."""

    @property
    def host(self) -> str:
        """The address of the client."""

    @property
    def is_admitted(self) -> bool:
        """True if the current request comes from a client that may use models."""

    @property
    def is_idle(self) -> bool:
        """True if no request is being read or answered, apart from one with incomplete headers."""

    @property
    def lateness(self) -> float:
        """Seconds for which the server has waited for a slow client; 0 if the client is not slow."""


_M = TypeVar("_M", bound=Member)


class Crowd(Generic[_M]):
    """The idle connections of a server in the order in which they became idle, and the slowest clients."""

    def __init__(self) -> None:
        self._idle: dict[_M, None] = {}
        self._slow = Slowest[_M](lambda member: member.lateness > 0)

    def rest(self, member: _M) -> None:
        """Note that a connection is idle from now on."""
        self._idle.pop(member, None)
        self._idle[member] = None

    def leave(self, member: _M) -> None:
        """Note that a connection is busy or closed."""
        self._idle.pop(member, None)

    def to_close(self, members: Iterable[_M], now: float) -> _M | None:
        """Return the connection that has been idle for the longest time, or else one with a slow client.

        members  all connections that may be closed
        now      the time in seconds

        Of slow clients, those without a key come first, then those with the most connections, then the
        slowest. Returns None if all connections are busy.
        """
        return self._longest_idle() or self._slow.next(lambda: self._slow_ones(members), now)

    def _longest_idle(self) -> _M | None:
        for member in list(islice(self._idle, _MOST_UNREAD)):
            del self._idle[member]
            if member.is_idle:
                return member
            self._idle[member] = None  # its client still reads an answer
        return None

    @staticmethod
    def _slow_ones(members: Iterable[_M]) -> Iterator[tuple[Any, _M]]:
        members = list(members)
        counts = Counter(each.host for each in members)
        for each in members:
            if lateness := each.lateness:
                yield (not each.is_admitted, counts[each.host], lateness), each
