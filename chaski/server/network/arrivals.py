"""`Arrivals`: bodies that clients are sending. The slowest one is interrupted if others need its place.

A client may send a body slowly, or not at all. Therefore each piece must arrive in time, and the whole body
at a minimum rate. A slow body may occupy a place or memory only as long as no other request needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from time import monotonic

from starlette.types import Receive

from chaski.errors import BusyError, OptionError
from chaski.server.network.slowest import Slowest

__all__ = ["LEAST_RATE", "Arrival", "Arrivals", "SlowBodyError", "is_slow"]

LEAST_RATE = 1024
"""Minimum average rate, in bytes per second, at which a client must send or read while the server waits."""
_FAST = 1 << 16
"""Rate in bytes per second from which a body is never interrupted for others."""
_GRACE_SECONDS = 3.0
"""Seconds for which the server waits for a client before it may interrupt the body."""


class SlowBodyError(OptionError):
    """The body did not arrive in time."""


def is_slow(length: int, seconds: float) -> bool:
    """Return whether a client that sent `length` bytes in `seconds` may be interrupted for others."""
    return seconds >= _GRACE_SECONDS and length < _FAST * seconds


class Arrivals:
    """Bodies that are arriving at the same time. Use it in one event loop only.

    most  largest number of bodies; None for no limit
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._present: dict[Arrival, None] = {}
        self._slow = Slowest[Arrival](lambda each: each in self._present and each.is_slow)

    @contextmanager
    def enter(self) -> Iterator[Arrival]:
        """Count a body that arrives during the block. Raises BusyError if too many arrive and none is slow.

        An interrupted body is no longer counted, although it takes a moment to end.
        """
        if self._most is not None and len(self._present) >= self._most and not self.interrupt_slowest():
            raise BusyError(f"server busy: {self._most} files are being uploaded; try again later")
        arrival = Arrival()
        self._present[arrival] = None
        try:
            yield arrival
        finally:
            self._present.pop(arrival, None)

    def interrupt_slowest(self) -> bool:
        """Interrupt the slowest body. Returns whether there was a slow one."""
        slowest = self._slow.next(
            lambda: ((-each.rate, each) for each in self._present if each.is_slow), monotonic()
        )
        if slowest is None:
            return False
        del self._present[slowest]
        slowest.interrupt()
        return True


class Arrival:
    """A body that is arriving.

    length  number of bytes that have arrived
    """

    def __init__(self) -> None:
        self.length = 0
        self._waited = 0.0
        self._waits_since: float | None = None
        self._timer: asyncio.Timeout | None = None
        self._is_interrupted = False

    @property
    def waited(self) -> float:
        """Seconds for which the server has waited for the client."""
        return self._waited + (0.0 if self._waits_since is None else monotonic() - self._waits_since)

    @property
    def rate(self) -> float:
        """Bytes that arrive per second while the server waits for them."""
        return self.length / max(self.waited, 1e-3)

    @property
    def is_slow(self) -> bool:
        """True if the server is waiting for the client, has waited for a while, and has received little."""
        return self._waits_since is not None and is_slow(self.length, self.waited)

    def interrupt(self) -> None:
        """End the body with a SlowBodyError, at the latest when its next piece arrives."""
        self._is_interrupted = True
        if self._timer is not None:
            self._timer.reschedule(asyncio.get_running_loop().time())

    async def pieces(self, receive: Receive, idle_seconds: float) -> AsyncIterator[bytes]:
        """Yield the pieces of the body as they arrive.

        Raises SlowBodyError if a piece takes longer than `idle_seconds`, if the average rate is below
        `LEAST_RATE`, or after `interrupt`. Raises OptionError if the client disconnects.
        """
        is_whole = False
        while not is_whole:
            patience = min(idle_seconds, idle_seconds + self.length / LEAST_RATE - self._waited)
            try:
                async with asyncio.timeout(patience) as timer:
                    self._timer, self._waits_since = timer, monotonic()
                    message = await receive()
            except TimeoutError:
                raise self._late() from None
            finally:
                self._waited, self._waits_since, self._timer = self.waited, None, None
            if message["type"] == "http.disconnect":
                raise OptionError("request canceled")
            if self._is_interrupted:
                raise self._late()
            piece = message.get("body", b"")
            self.length += len(piece)
            yield piece
            is_whole = not message.get("more_body", False)

    def _late(self) -> SlowBodyError:
        if self._is_interrupted:
            return SlowBodyError(
                f"the body of the request arrived slowly ({self.length} bytes in {self.waited:.0f} s), and "
                "other requests need its place; send it again later"
            )
        return SlowBodyError(
            f"the body of the request did not arrive in time; {self.length} bytes have arrived"
        )
