"""Streams of an endpoint: ready pieces are sent together, but only up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from chaski.errors import WorkerError
from chaski.server.http.endpoint import Endpoint, HTTPRequest, Reply, Stream


class Client:
    """Sends one request to an endpoint, and reads when the test allows it."""

    def __init__(self, stream: Callable[[], Stream]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.leaves = asyncio.Event()
        self._stream = stream
        self.reads.set()

    async def ask(self) -> None:
        async def handler(http: HTTPRequest) -> Reply:
            return self._stream()

        scope = {"type": "http", "query_string": b"", "method": "GET", "path": "/api/x", "headers": []}
        await Endpoint(handler)(scope, self._receive, self._send)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if "body" in message]

    async def _receive(self) -> dict[str, Any]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        self.messages.append(message)


def test_what_is_ready_goes_out_together() -> None:
    async def pieces() -> Stream:
        for number in range(3):
            for letter in "abc":
                yield f"{letter}{number} ".encode()
            await asyncio.sleep(0.01)

    async def run() -> list[bytes]:
        client = Client(pieces)
        await client.ask()
        return client.bodies

    assert asyncio.run(run()) == [b"a0 b0 c0 ", b"a1 b1 c1 ", b"a2 b2 c2 ", b""]


def test_who_reads_slowly_is_waited_for() -> None:
    made = 0

    async def pieces() -> Stream:
        nonlocal made
        for made in range(5000):
            yield b"%d " % made

    async def run() -> list[bytes]:
        client = Client(pieces)
        asking = asyncio.create_task(client.ask())
        while not client.messages:
            await asyncio.sleep(0)
        client.reads.clear()
        await asyncio.sleep(0.01)
        assert made < 1000
        client.reads.set()
        await asking
        return client.bodies

    assert b"".join(asyncio.run(run())) == b"".join(b"%d " % number for number in range(5000))


@pytest.mark.parametrize("is_slow", [False, True])
def test_an_error_comes_behind_what_was_said(is_slow: bool) -> None:
    async def pieces() -> Stream:
        yield b"begun\n"
        await asyncio.sleep(0.01 * is_slow)
        yield b"more\n"
        raise WorkerError("it died")

    async def run() -> list[bytes]:
        client = Client(pieces)
        await client.ask()
        return client.bodies

    whole = b"".join(asyncio.run(run()))
    assert whole.startswith(b'begun\nmore\n{"error":')


def test_who_leaves_gets_nothing_more() -> None:
    is_closed = False

    async def pieces() -> Stream:
        nonlocal is_closed
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0.001)
        finally:
            is_closed = True

    async def run() -> None:
        client = Client(pieces)
        asking = asyncio.create_task(client.ask())
        await asyncio.sleep(0.02)
        client.reads.clear()
        await asyncio.sleep(0.005)
        client.leaves.set()
        await asyncio.wait_for(asking, 5)
        assert client.messages[-1].get("more_body", True)

    asyncio.run(run())
    assert is_closed
