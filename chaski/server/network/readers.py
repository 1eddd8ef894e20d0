"""`Reader`: watch how fast a client reads its answer, so that no client occupies a connection forever.

Time counts only while bytes wait for the client, and not while an answer is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from msgspec import Struct

from chaski.server.network.arrivals import LEAST_RATE

__all__ = ["Patience", "Reader", "admit", "is_admitted"]

_LOOK_SECONDS = 0.25
"""Seconds between two checks of the waiting bytes."""
_ANSWER_RATE = 64
"""Minimum average rate, in bytes per second, at which a client must read an answer while the server waits."""

_ADMITTED = "chaski.is_admitted"


def admit(scope: MutableMapping[str, Any]) -> None:
    """Record that the client of a request may use models. This is not called for public routes."""
    scope.setdefault("state", {})[_ADMITTED] = True


def is_admitted(scope: Mapping[str, Any]) -> bool:
    """Return whether `admit` was called for a request."""
    return _ADMITTED in scope.get("state", {})


class Patience(Struct, frozen=True):
    """The time that a client has for reading.

    idle_seconds  longest time in which it may read nothing
    rate          minimum average rate in bytes per second, beyond `idle_seconds`
    """

    idle_seconds: float
    rate: int = LEAST_RATE

    @classmethod
    def for_answers(cls, idle_seconds: float) -> Patience:
        """Return the patience with clients that may use models, which may read as slowly as people do."""
        return cls(idle_seconds, _ANSWER_RATE)


class Reader:
    """Monitor of how fast the client of one connection reads. Use it in one event loop only.

    lost  function that is called when the client has read too little for too long
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, lost: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._lost = lost
        self._timer: asyncio.TimerHandle | None = None
        self._patience = Patience(0)
        self._left = 0
        self._read = 0
        self._waited = self._idle = 0.0
        self._looked_at = 0.0

    @property
    def waited(self) -> float:
        """Seconds for which this answer has waited for the client; 0 while nothing waits."""
        return self._waited if self._timer is not None else 0.0

    def begin(self) -> None:
        """Start counting at zero for a new answer, unless bytes of the last one still wait."""
        if self._timer is None:
            self._read, self._waited, self._idle = 0, 0.0, 0.0

    def wait(self, patience: Patience) -> None:
        """Watch the bytes that wait for the client, until there are none or `stop` is called."""
        self._patience = patience
        left = self._transport.get_write_buffer_size()
        if left and self._timer is None:
            self._left, self._looked_at = left, self._loop.time()
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """Stop watching until the next `wait`. Only a few bytes wait then, and others will follow."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now, left = self._loop.time(), self._transport.get_write_buffer_size()
        self._waited += now - self._looked_at
        self._idle = 0.0 if left < self._left else self._idle + now - self._looked_at
        self._read += max(self._left - left, 0)
        self._left, self._looked_at = left, now
        patience = self._patience
        if not left:
            return
        if self._idle >= patience.idle_seconds or (
            self._waited >= patience.idle_seconds + self._read / patience.rate
        ):
            self._lost()
        else:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)
