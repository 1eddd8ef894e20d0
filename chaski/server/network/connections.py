"""Connections: limits of their number, and of the time for sending headers and for reading answers.

uvicorn waits without limit for incomplete headers, for the rest of a body that is no longer read, and for
clients that do not read. The time for computing an answer is not limited, since loading a model, a long
prompt or a pull may take long.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from chaski.server.network.arrivals import is_slow
from chaski.server.network.crowd import Crowd
from chaski.server.network.jsons import dump
from chaski.server.network.readers import Patience, Reader, is_admitted

__all__ = ["Connection", "ServerConfig"]


def _refusal(status: str, message: str, *headers: str) -> bytes:
    """Return a whole response for a connection whose request was not read, so that its API is unknown."""
    body = dump({"error": message})
    kept = (*headers, f"Content-Length: {len(body)}", "Content-Type: application/json", "Connection: close")
    return "\r\n".join((f"HTTP/1.1 {status}", *kept, "", "")).encode() + body


_LATE = _refusal("408 Request Timeout", "the headers of the request did not arrive in time")
_FULL = _refusal(
    "503 Service Unavailable",
    "the server has as many connections as CHASKI_MAX_CONNECTIONS allows; try again later",
    "Retry-After: 1",
)
_INVALID = _refusal("400 Bad Request", "this is no valid HTTP; does the client expect HTTPS?")
_UNSENT_BYTES = 1 << 15
"""Unsent bytes that the kernel buffers. The server cannot see whether the client reads these bytes."""
_READER_GRACE = 1.0
"""Seconds for which an answer waits for its client before its connection may be closed for another one."""


class ServerConfig(uvicorn.Config):
    """uvicorn's settings, and those of `Connection`.

    header_timeout  seconds for the headers of a request
    patience        time limits for clients that do not read
    answer_patience time limits for such clients if they may use models
    crowd           the connections
    """

    def __init__(
        self,
        app: Any,
        *,
        header_timeout: float,
        max_connections: int,
        patience: Patience,
        answer_patience: Patience,
        **others: Any,
    ) -> None:
        super().__init__(app, **others)
        self.header_timeout = header_timeout
        self.max_connections = max_connections
        self.patience = patience
        self.answer_patience = answer_patience
        self.crowd: Crowd[Connection] = Crowd()


class Connection(H11Protocol):
    """A connection that is closed when the client does not continue its request, or does not read its answer.

    It extends H11Protocol, the one of uvicorn's two protocols that limits the size of headers.
    """

    config: ServerConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._received = 0
        self._reader: Reader

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection. If there are too many, close an idle or slow one first."""
        super().connection_made(transport)
        self._reader = Reader(transport, self.loop, transport.abort)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            end = transport.get_extra_info("socket")
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        if len(self.connections) > self.config.max_connections and not self._make_room():
            transport.write(_FULL)
            transport.close()
            return
        self.config.crowd.rest(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines of a closed connection."""
        self.config.crowd.leave(self)
        self._forget()
        self._reader.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received data, and update the deadline."""
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._began, self._received = self.loop.time(), 0
            self._reader.begin()
        self._received += len(data)
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self.config.crowd.leave(self)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP. If an answer has begun, it ends here."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_INVALID)
        if self.cycle is not None:
            self.cycle.disconnected = True  # it would write a response of its own
            self.cycle.message_event.set()
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing about a client that tries a WebSocket first. Its request is answered over HTTP."""

    def pause_writing(self) -> None:
        """Let the answer wait until the client has read more."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Let the answer continue."""
        super().resume_writing()
        if self.cycle is not None and not self.cycle.response_complete:
            self._reader.stop()

    def on_response_complete(self) -> None:
        """Wait for the client to read the rest, and for the next request."""
        self._await_reader()
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self.config.crowd.rest(self)
        self._watch()

    def _await_reader(self) -> None:
        self._reader.wait(self.config.answer_patience if self.is_admitted else self.config.patience)

    @property
    def is_admitted(self) -> bool:
        """True if the current request comes from a client that may use models."""
        return self.scope is not None and is_admitted(self.scope)

    @property
    def host(self) -> str:
        """The address of the client."""
        return self.client[0] if self.client else ""

    @property
    def lateness(self) -> float:
        """Seconds for which the server has waited for a slow client; 0 if the client is not slow."""
        if self.transport.is_closing():
            return 0.0
        if self._reader.waited >= _READER_GRACE:
            return self._reader.waited
        if self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused:
            seconds = self.loop.time() - self._began
            return seconds if is_slow(self._received, seconds) else 0.0
        return 0.0

    @property
    def is_idle(self) -> bool:
        """True if no request is being read or answered, apart from one with incomplete headers.

        An answer counts until the system has taken all its bytes.
        """
        has_rest = self.transport.is_closing() or self.transport.get_write_buffer_size() > 0
        return self.conn.their_state is h11.IDLE and not has_rest

    def _is_late_to_come(self) -> bool:
        """Return whether the server waits for the rest of a request, and is not answering one."""
        if self.conn.their_state is h11.IDLE:
            # Between two requests, uvicorn limits the wait for the first byte, but not for the next ones.
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
        """Close another connection, if one is not busy. Returns whether one was."""
        others = (each for each in self.connections if isinstance(each, Connection))
        other = self.config.crowd.to_close(others, self.loop.time())
        if other is None:
            return False
        other.transport.abort()
        return True
