"""Bodies that would expand a lot: bounded memory, and no other client waits."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from chaski.errors import BusyError
from chaski.server.network.bodies import MAX_BODY, Bodies
from chaski.server.network.budget import Budget, TooLargeError
from chaski.server.network.jsons import MAX_VALUES

_MEGABYTES = 950
_PROGRAM = """
import socket, sys
from pathlib import Path
from chaski.runner.channels.worker.client import Worker
from chaski.address import Address
from chaski.server.run import serve
from chaski.server.settings import Settings
from chaski.store.store import Store
settings = Settings(address=Address("127.0.0.1", 0), body_memory=256 << 20)
serve(settings, Store(Path(sys.argv[1])), lambda url: print(url.rpartition(":")[2], flush=True))
"""

# The start of a body, its repeated part, the count, and the end.
BODIES = {
    "objects": (b'{"model": "guide", "messages": [', b"{},", 20 << 20, b"1]}"),
    "numbers": (b'{"model": "guide", "messages": [', b"1,", 30 << 20, b"1]}"),
    "depth": (b'{"model": "guide", "messages": ', b"[", 60 << 20, b""),
    "names": (b'{"model": "guide", "messages": [', b'{"a":1},', 7 << 20, b"1]}"),
    "wide text": (b'{"model": "none", "prompt": "\xf0\x9f\x98\x80', b"a", 60 << 20, b'"}'),
    "escaped wide text": (b'{"model": "none", "prompt": "\\ud83d\\ude00', b"a", 60 << 20, b'"}'),
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Run a separate server; yield its port and process."""
    folder = tmp_path_factory.mktemp("models")
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline()), server.pid
        server.terminate()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request(method, path, body)
        reply = connection.getresponse()
        return reply.status, reply.read()


def peak(pid: int) -> int:
    """Return the peak memory of a process in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    lines = dict(line.split(":", 1) for line in text.splitlines())
    return int(lines["VmHWM"].split()[0]) >> 10


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.parametrize("name", BODIES)
def test_four_large_bodies_at_once(process: tuple[int, int], name: str) -> None:
    port, pid = process
    begin, part, count, end = BODIES[name]
    body = begin + part * count + end
    path = "/api/generate" if "text" in name else "/api/chat"
    # The fault took seconds. Other programs may stall a server, too, but hardly three times in a row.
    assert any(longest_wait(port, path, body) < 2 for _ in range(3))
    assert peak(pid) < _MEGABYTES


def longest_wait(port: int, path: str, body: bytes) -> float:
    """Return the seconds of the slowest `/api/version` while the server refuses four such bodies."""
    found: list[tuple[int, bytes]] = []
    askers = [threading.Thread(target=lambda: found.append(ask(port, "POST", path, body))) for _ in range(4)]
    for asker in askers:
        asker.start()
    longest = 0.0
    while any(asker.is_alive() for asker in askers):
        start = time.monotonic()
        assert ask(port, "GET", "/api/version")[0] == 200
        longest = max(longest, time.monotonic() - start)
        time.sleep(0.02)
    assert len(found) == 4
    assert {status for status, _ in found} <= {404, 413, 503}, found[0][1][:200]
    return longest


def body_of(bodies: Bodies, data: bytes, hold: asyncio.Event | None = None) -> asyncio.Task[object]:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": data, "more_body": False}

    async def read() -> object:
        scope = {"type": "http", "headers": [(b"content-length", str(len(data)).encode())]}
        async with bodies.read(scope, receive) as body:
            if hold is not None:
                await hold.wait()
            return body

    return asyncio.create_task(read())


def test_large_bodies_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for each other in order; small ones pass; a request that waits too long gets an error."""
    data = json.dumps({"a": "x" * 600_000}).encode()

    async def run() -> None:
        bodies, hold = Bodies(1_000_000, 30), asyncio.Event()
        first, second = body_of(bodies, data, hold), body_of(bodies, data)
        assert await body_of(bodies, b'{"a": 1}') == {"a": 1}
        await asyncio.sleep(0.2)
        assert not first.done()
        assert not second.done()
        monkeypatch.setattr("chaski.server.network.budget._WAIT_SECONDS", 0.05)
        with pytest.raises(BusyError, match="too many large requests"):
            await body_of(bodies, data)
        hold.set()
        assert await first == await second == json.loads(data)
        with pytest.raises(TooLargeError):
            await body_of(bodies, json.dumps({"a": "x" * 1_100_000}).encode())
        assert await body_of(bodies, data) == json.loads(data)
        bodies.close()

    asyncio.run(run())


def test_bodies_that_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has memory that the other needs: the later one gets an error, and the first one continues."""
    monkeypatch.setattr("chaski.server.network.budget._LOOK_SECONDS", 0.01)

    async def run() -> None:
        budget = Budget(1_000_000, make_room=lambda: False)
        with budget.share() as first:
            await first.grow(500_000)
            with budget.share() as second:
                await second.grow(300_000)
                growing = [asyncio.create_task(each.grow(900_000)) for each in (first, second)]
                with pytest.raises(BusyError, match="too many large requests"):
                    await asyncio.wait_for(growing[1], 20)
            await asyncio.wait_for(growing[0], 20)
            assert first.size >= 900_000

    asyncio.run(run())


def test_what_a_body_becomes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide text takes four times its bytes, so it waits for others; the budget is complete afterwards."""
    monkeypatch.setattr("chaski.server.network.budget._WAIT_SECONDS", 0.05)
    wide = ('{"a": "\U0001f600' + "x" * 200_000 + '"}').encode()

    async def run() -> None:
        bodies, hold = Bodies(1_000_000, 30), asyncio.Event()
        first = body_of(bodies, wide, hold)
        await asyncio.sleep(0.2)
        with pytest.raises(BusyError):
            await body_of(bodies, wide)
        hold.set()
        await first
        assert await body_of(bodies, wide) == json.loads(wide)
        bodies.close()

    asyncio.run(run())


def test_pictures_are_no_values() -> None:
    data = json.dumps({"images": ["," * (MAX_BODY // 4)] * 3}).encode()

    async def run() -> None:
        bodies = Bodies(1 << 30, 30)
        assert await body_of(bodies, data) == json.loads(data)
        with pytest.raises(TooLargeError, match=f"more than {MAX_VALUES} values"):
            await body_of(bodies, json.dumps({"a": [0] * MAX_VALUES}).encode())
        bodies.close()

    asyncio.run(run())
