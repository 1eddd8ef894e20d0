"""Connections: limits of time for the headers of requests, and of how many clients connect.

uvicorn waits for ever for headers that are half there, and for the rest of a body that nobody reads any more.
Answers may take as long as they like: a model is loaded, a prompt is long, a pull goes on.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection", "ServerConfig"]

_LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
)


class ServerConfig(uvicorn.Config):
    """uvicorn's settings, and those of `Connection`. header_timeout is in seconds."""

    def __init__(self, app: Any, *, header_timeout: float, max_connections: int, **others: Any) -> None:
        super().__init__(app, **others)
        self.header_timeout = header_timeout
        self.max_connections = max_connections


class Connection(H11Protocol):
    """A connection that is closed when nothing is answered on it and the client does not go on.

    Of the two protocols that uvicorn knows, this is the one that bounds how long headers are.
    """

    config: ServerConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, if need be instead of one that does nothing."""
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) > self.config.max_connections and not self._make_room():
            transport.write(_FULL)
            transport.close()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline of a closed connection."""
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read data."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._since = self.loop.time()
        super().on_response_complete()
        self._watch()

    def _is_idle(self) -> bool:
        """Return whether no request is being read or answered; one with unfinished headers does not count."""
        return self.conn.their_state is h11.IDLE and not self.transport.is_closing()

    def _is_late_to_come(self) -> bool:
        """Return whether the client owes the rest of something it began, while nothing is being answered."""
        if self.conn.their_state is h11.IDLE:
            # Between two requests uvicorn waits for a while, but only for the first byte.
            return self.cycle is None or bool(self.conn.trailing_data[0])
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _watch(self) -> None:
        """Start or stop the deadline of the client. Single bytes do not extend it."""
        if self.transport.is_closing() or not self._is_late_to_come():
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.config.header_timeout, self._give_up)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self.transport.write(_LATE)
        self.transport.close()

    def _make_room(self) -> bool:
        """Close the connection that has done nothing for the longest; False where all are at work."""
        others = (each for each in self.connections if isinstance(each, Connection) and each is not self)
        idlest = min((each for each in others if each._is_idle()), key=lambda each: each._since, default=None)
        if idlest is None:
            return False
        idlest.transport.abort()
        return True
