"""A client of the simulated server: it sends one request, reads at its own pace, and may leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from random import Random
from typing import Any

from starlette.types import ASGIApp, Message

__all__ = ["Client"]


class Client:
    """One exchange over a simulated connection. The seed decides pauses, sizes of pieces, and when it leaves.

    status   status of the reply; 0 before it came
    is_over  whether the server is done with the request
    has_left whether the client cut the connection
    refusals statuses of replies that are right in any world
    pause    longest time in seconds between two pieces that it sends or reads
    """

    def __init__(
        self, method: str, path: str, body: Mapping[str, Any] | bytes | None, random: Random
    ) -> None:
        self.method = method
        self.path = path
        self.status = 0
        self.reply = bytearray()
        self.is_over = self.has_left = self.is_complete = False
        self._random = random
        self._data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self._sent = 0
        self.pause = random.choice((0.0, 0.0, 0.0, 0.002, 0.1, 5.0))
        # The server may be busy, and does not wait for slow bodies.
        self.refusals = {503, 408} if self.pause > 1 else {503}
        leaves = random.random() < 0.15
        self._leaves_at = random.choice((0, 1, 2, 5)) if leaves else None
        self._left = asyncio.Event()
        if isinstance(body, Mapping) and random.random() < 0.05:
            self._data += b" " * 70_000  # large bodies share memory
        self._address = f"10.0.0.{random.randrange(3)}"

    async def run(self, app: ASGIApp) -> None:
        """Send the request and read the whole reply."""
        headers = [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self._data)),
        ]
        path, _, query = self.path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": headers,
            "client": (self._address, 1),
            "server": ("127.0.0.1", 80),
        }
        try:
            await app(scope, self._receive, self._send)
        except asyncio.CancelledError:
            self.has_left = True  # the loop ends
            raise
        finally:
            self.is_over = True

    def leave_after(self, count: int) -> None:
        """Leave after this many pieces of the reply."""
        self._leaves_at = count

    def cut(self) -> None:
        """Leave now. Call it in the loop."""
        self.has_left = True
        self._left.set()

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

    async def _receive(self) -> Message:
        if self._sent < len(self._data) or not self._sent:
            if self.pause and self._random.random() < 0.2:
                await asyncio.sleep(self.pause)
            rest = len(self._data) - self._sent
            size = rest if self._random.random() < 0.8 else self._random.randint(0, rest)
            piece = self._data[self._sent : self._sent + size]
            self._sent += len(piece)
            has_more = self._sent < len(self._data)
            self._sent = self._sent or (not self._data)
            return {"type": "http.request", "body": piece, "more_body": has_more}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.pause:
            await asyncio.sleep(self.pause * self._random.random())
        if self.has_left:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if self._leaves_at is not None:
            self._leaves_at -= 1
            if self._leaves_at < 0:
                self.cut()
                return
        self.reply += message.get("body", b"")
        self.is_complete = not message.get("more_body", False)
