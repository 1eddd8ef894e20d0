"""Simulated connections. The server's end is a transport for its HTTP protocol, as asyncio's are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.client import Client

__all__ = ["Wire"]

_PIECE = 65536


class _Socket:
    """What the server asks of a socket itself."""

    def __init__(self, peer: tuple[str, int]) -> None:
        self._peer = peer

    def getpeername(self) -> tuple[str, int]:
        return self._peer

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 80

    def setsockopt(self, *option: object) -> None:
        """Do nothing: `room` of the wire takes the place of buffers."""


class Wire(asyncio.Transport):
    """A connection. `send`, `read` and `leave` are the client's end, all other methods the server's.

    room     bytes of an answer that the system takes before the client reads them
    high     written bytes beyond which the protocol is paused, as asyncio does, until a quarter is left
    client   the client that uses the connection now
    changed  set when the client may have something to read, or can send again
    """

    client: Client

    def __init__(
        self,
        protocol: Any,
        loop: asyncio.AbstractEventLoop,
        peer: tuple[str, int],
        room: int,
        high: int,
    ) -> None:
        super().__init__({"socket": _Socket(peer)})
        self.changed = asyncio.Event()
        self._protocol = protocol
        self._loop = loop
        self._room, self._high = room, high
        self._sent, self._written, self._taken = bytearray(), bytearray(), bytearray()
        self._is_closing = self._is_lost = self._is_paused = self._is_deaf = False
        self.was_aborted = False
        loop.call_soon(protocol.connection_made, self)

    def send(self, data: bytes) -> None:
        """Send bytes to the server, which gets them soon."""
        self._sent += data
        self._loop.call_soon(self._deliver)

    @property
    def can_send(self) -> bool:
        return self._is_lost or len(self._sent) < _PIECE

    def read(self, most: int) -> bytes:
        """Take some bytes of the answer. Nothing at all means that the server has not written more."""
        piece = bytes(self._taken[:most])
        del self._taken[:most]
        self._take()
        return piece

    @property
    def is_ended(self) -> bool:
        """Whether the server has closed the connection, and everything was read."""
        return self._is_lost and not self._taken

    def leave(self, error: Exception | None) -> None:
        """Close the connection; the server sees that error, or the end."""
        self._is_closing = True
        self._written.clear()
        self._loop.call_soon(self._lose, error)

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._written += data
            self._take()
            if len(self._written) > self._high and not self._is_paused:
                self._is_paused = True
                self._protocol.pause_writing()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._take()

    def abort(self) -> None:
        self._is_closing = self.was_aborted = True
        self._written.clear()
        self._loop.call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_deaf = True

    def resume_reading(self) -> None:
        self._is_deaf = False
        self._loop.call_soon(self._deliver)

    def get_write_buffer_size(self) -> int:
        return len(self._written)

    def _take(self) -> None:
        """Take as many written bytes as there is room for."""
        count = max(0, self._room - len(self._taken))
        self._taken += self._written[:count]
        del self._written[:count]
        if self._is_paused and len(self._written) <= self._high // 4:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not self._written:
            self._loop.call_soon(self._lose, None)
        self.changed.set()

    def _deliver(self) -> None:
        if self._sent and not (self._is_closing or self._is_deaf):
            piece = bytes(self._sent[:_PIECE])
            del self._sent[:_PIECE]
            self._protocol.data_received(piece)
            self.changed.set()
            if self._sent:
                self._loop.call_soon(self._deliver)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._protocol.connection_lost(error)
            self.changed.set()
