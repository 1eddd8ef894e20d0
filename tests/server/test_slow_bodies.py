"""Slow bodies lose their memory and connection as soon as other requests need them."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack

import pytest
from starlette.types import Message, Receive

from chaski.errors import BusyError
from chaski.server.network import arrivals, budget
from chaski.server.network.arrivals import Arrival, Arrivals, SlowBodyError
from chaski.server.network.bodies import Bodies
from chaski.server.network.budget import Budget

_PIECE = b" " * 70_000
_MEMORY = 4_000_000


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_GRACE_SECONDS", 0.2)


def dripping() -> Receive:
    """Run a client that sends one piece at once, and then single bytes slowly."""
    pieces = [_PIECE]

    async def receive() -> Message:
        if not pieces:
            await asyncio.sleep(0.05)
        return {"type": "http.request", "body": pieces.pop() if pieces else b" ", "more_body": True}

    return receive


def whole(data: bytes) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": data, "more_body": False}

    return receive


async def read(bodies: Bodies, receive: Receive, announced: int) -> object:
    scope = {"type": "http", "headers": [(b"content-length", str(announced).encode())]}
    async with bodies.read(scope, receive) as body:
        return body


def test_announced_bytes_take_no_memory() -> None:
    """Sixteen slow bodies announce sixteen times the budget; a large one is still read at once."""
    data = json.dumps({"a": "x" * 1_000_000}).encode()

    async def run() -> None:
        bodies = Bodies(_MEMORY * 4, 30)
        slow = [asyncio.create_task(read(bodies, dripping(), _MEMORY * 4)) for _ in range(16)]
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(read(bodies, whole(data), len(data)), 5) == json.loads(data)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        bodies.close()

    asyncio.run(run())


def test_slow_bodies_give_their_memory_to_others() -> None:
    data = json.dumps({"a": "x" * 3_850_000}).encode()

    async def run() -> None:
        bodies = Bodies(_MEMORY, 30)
        slow = [asyncio.create_task(read(bodies, dripping(), _MEMORY)) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(read(bodies, whole(data), len(data)), 5) == json.loads(data)
        ended = [task for task in slow if task.done()]
        assert ended
        assert all(isinstance(task.exception(), SlowBodyError) for task in ended)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        bodies.close()

    asyncio.run(run())


def test_a_slow_upload_gives_its_place_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        places = Arrivals(2)

        async def upload(receive: Receive) -> int:
            with places.enter() as arrival:
                async for _ in arrival.pieces(receive, 30):
                    pass
                return arrival.length

        slow = [asyncio.create_task(upload(dripping())) for _ in range(2)]
        await asyncio.sleep(0.05)
        monkeypatch.setattr(arrivals, "_GRACE_SECONDS", 1000)
        with pytest.raises(BusyError):  # they have just begun
            await upload(whole(b"abc"))
        monkeypatch.setattr(arrivals, "_GRACE_SECONDS", 0.2)
        await asyncio.sleep(1.5)
        assert await upload(whole(b"abc")) == 3
        done, pending = await asyncio.wait(slow, timeout=1)
        assert len(done) == 1
        assert isinstance(done.pop().exception(), SlowBodyError)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    asyncio.run(run())


def test_many_waiting_bodies_look_for_slow_ones_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the server is not theirs: hundreds that wait cost as much as one."""
    monkeypatch.setattr(budget, "_LOOK_SECONDS", 0.02)
    looks: list[None] = []

    def look() -> bool:
        looks.append(None)
        return False

    async def run() -> None:
        memory = Budget(1 << 20, look)
        with ExitStack() as stack:
            shares = [stack.enter_context(memory.share()) for _ in range(400)]
            await shares[0].grow(1 << 20)
            waiting = [asyncio.create_task(share.grow(1 << 16)) for share in shares[1:]]
            await asyncio.sleep(0.2)
            assert 2 < len(looks) < 20
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            count = len(looks)
        await asyncio.sleep(0.1)
        assert len(looks) <= count + 1

    asyncio.run(run())


def test_a_search_serves_many_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    class Dripping(Arrival):
        @property
        def is_slow(self) -> bool:
            nonlocal count
            count += 1
            return True

    monkeypatch.setattr(arrivals, "Arrival", Dripping)
    present = Arrivals()
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(present.enter())
        assert sum(present.interrupt_slowest() for _ in range(200)) == 200
    assert count < 2000
