"""A client of the simulated server: it sends one request, reads at its own pace, and may leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import h11

from tests.simulation.wire import Wire

__all__ = ["Client", "Connect"]

Connect = Callable[["Client"], Wire]
"""Gives a client a connection, perhaps one that was used before."""


class Client:
    """One exchange over a simulated connection. The seed decides pauses, sizes of pieces, and when it leaves.

    status   status of the reply; 0 before it came
    has_left whether the client cut the connection, or was too slow for the server
    refusals statuses of replies that are right in any world
    pause    longest time in seconds between two pieces that it sends or reads
    is_kept  whether it leaves its connection open for another one
    """

    def __init__(
        self, method: str, path: str, body: Mapping[str, Any] | bytes | None, random: Random
    ) -> None:
        self.method = method
        self.path = path
        self.status = 0
        self.reply = bytearray()
        self.has_left = self.is_complete = False
        self._random = random
        self._data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.pause = random.choice((0.0, 0.0, 0.0, 0.002, 0.1, 5.0))
        # The server may be busy, and does not wait for slow clients.
        self.refusals = {503, 408} if self.pause > 1 else {503}
        leaves = random.random() < 0.15
        self._leaves_at = random.choice((0, 1, 2, 5)) if leaves else None
        if isinstance(body, Mapping) and random.random() < 0.05:
            self._data += b" " * 70_000  # large bodies share memory
        self.address = f"10.0.0.{random.randrange(3)}"
        self.is_kept = random.random() < 0.5
        self._wire: Wire | None = None
        self._is_done = False
        self._num_handlers = self._num_handled = 0

    async def run(self, connect: Connect) -> None:
        """Send the request and read the whole reply."""
        try:
            while not self.has_left and not await self._exchange(connect(self)):
                pass
        except asyncio.CancelledError:
            self.has_left = True  # the loop ends
            raise
        finally:
            self._is_done = True

    def turn_away(self) -> None:
        """Let the request be over before it was sent."""
        self.has_left = self._is_done = True

    @property
    def kept(self) -> Wire | None:
        """The connection, if another client may use it."""
        is_open = self._wire is not None and not self._wire.is_closing()
        return self._wire if self._is_done and is_open else None

    def begin_handling(self) -> None:
        """Note that the application gets the request."""
        self._num_handlers += 1

    def end_handling(self) -> None:
        self._num_handled += 1

    @property
    def is_over(self) -> bool:
        """Whether the server and the client are done with the request."""
        return self._is_done and self._num_handled == self._num_handlers

    def leave_after(self, count: int) -> None:
        """Leave after this many pieces of the reply."""
        self._leaves_at = count

    def cut(self) -> None:
        """Leave now. Call it in the loop."""
        self.has_left = True
        if self._wire is not None and not self._is_done:
            self._leave(self._wire)

    @property
    def replies(self) -> list[Any]:
        """The JSON of the reply: lines, events, or one value."""
        text = bytes(self.reply).decode()
        if text.startswith(("data:", "event:")):
            lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
            return [json.loads(line) for line in lines if line != "[DONE]"]
        try:
            return [json.loads(text)]
        except ValueError:
            lines = text.split("\n")
            return [json.loads(line) for line in lines[:-1] if line]

    async def _exchange(self, wire: Wire) -> bool:
        """Ask over a connection. Return False if the server had closed it before it got the request."""
        self._wire = wire
        asking = h11.Connection(h11.CLIENT)
        fields = [("Host", "localhost"), ("Content-Type", "application/json")]
        request = h11.Request(
            method=self.method,
            target=self.path.encode(),
            headers=[*fields, ("Content-Length", str(len(self._data)))],
        )
        events: tuple[Any, ...] = (request, h11.Data(data=self._data), h11.EndOfMessage())
        sending = asyncio.ensure_future(
            self._send(wire, b"".join(asking.send(event) or b"" for event in events))
        )
        try:
            await self._read(wire, asking)
        finally:
            is_sent = sending.done()
            sending.cancel()
            if not (is_sent and self.is_complete and self.is_kept):
                self._leave(wire)
        if self.pause > 0.01 and wire.was_aborted:
            self.has_left = True  # the server does not wait for it, or needs the connection for others
        return bool(self.status or self._num_handlers or self.has_left)

    async def _send(self, wire: Wire, data: bytes) -> None:
        while data and not wire.is_ended:
            if self.pause and self._random.random() < 0.2:
                await asyncio.sleep(self.pause)
            size = len(data) if self._random.random() < 0.8 else self._random.randint(1, len(data))
            wire.send(data[:size])
            data = data[size:]
            while not wire.can_send:
                wire.changed.clear()
                await wire.changed.wait()

    async def _read(self, wire: Wire, asking: h11.Connection) -> None:
        """Read the reply to its end, or until one of both leaves."""
        while not (self.has_left or self.is_complete):
            piece = wire.read(self._random.choice((64, 4096, 65536)))
            if not piece and not wire.is_ended:
                wire.changed.clear()
                await wire.changed.wait()
                continue
            asking.receive_data(piece)
            try:
                while (event := asking.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                    self._note(event)
            except h11.RemoteProtocolError:
                if piece:
                    raise
                return  # the reply has no end
            if not piece:
                return
            if self.pause:
                await asyncio.sleep(self.pause * self._random.random())

    def _note(self, event: Any) -> None:
        if isinstance(event, h11.Response):
            self.status = event.status_code
        elif isinstance(event, h11.Data):
            if self._leaves_at is not None:
                self._leaves_at -= 1
                if self._leaves_at < 0:
                    self.cut()
            if not self.has_left:
                self.reply += event.data
        elif isinstance(event, h11.EndOfMessage):
            self.is_complete = True

    def _leave(self, wire: Wire) -> None:
        wire.leave(ConnectionResetError() if self._random.random() < 0.5 else None)
