"""Measure what thousands of other connections cost the readers of answers: `python -m benchmarks.crowd`.

64 clients read answers of the bundled model, alone and beside a crowd in turns. The crowd is a process of its
own. A quarter of its connections is idle after a request, a quarter sends nothing, and the others send
headers or a body at a byte a second. What the server closes comes again after a second. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import median, quantiles
from time import perf_counter

from benchmarks.server import HOST, processor_seconds, served, streams, wait_until_ready

_SLICES = 20
"""Parts of the crowd that come or send one after the other within a second."""
_HEAD = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n"
_OPENINGS = (b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n", b"", b"", _HEAD + b"\r\n{")


class _Member(asyncio.Protocol):
    """A connection of a kind: idle, silent, with slow headers, or with a slow body."""

    def __init__(self, port: int, kind: int) -> None:
        self._port, self._kind = port, kind
        self._transport: asyncio.Transport | None = None
        self._sent = 0
        self.has_come = False

    async def connect(self) -> None:
        with suppress(OSError):
            await asyncio.get_running_loop().create_connection(lambda: self, HOST, self._port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._sent, self.has_come = transport, 0, True
        transport.write(_OPENINGS[self._kind])

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    async def act(self) -> None:
        """Send a byte if that is its kind; connect again if the server has closed the connection."""
        if self._transport is None:
            await self.connect()
        elif self._kind > 1:
            self._transport.write(b" " if self._kind == 3 else _HEAD[self._sent : self._sent + 1])
            self._sent += 1


async def _crowd(port: int, size: int) -> None:
    """Hold that many connections, and say when all have come."""
    members = [_Member(port, number % 4) for number in range(size)]
    is_told = False
    while True:
        for part in range(_SLICES):
            started = perf_counter()
            for member in members[part::_SLICES]:
                await member.act()
            await asyncio.sleep(max(0.0, 1 / _SLICES - (perf_counter() - started)))
        if not is_told and all(member.has_come for member in members):
            is_told = True
            print("all have come", flush=True)


@contextmanager
def _beside_a_crowd(port: int, size: int) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.crowd", "--size", str(size), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the crowd has ended"
        try:
            yield
        finally:
            process.kill()


def _turn(pid: int, port: int, clients: int, tokens: int, seconds: float) -> tuple[float, float, float]:
    """Return median and p99 of the seconds between two pieces, and the server's share of a core."""
    gaps: list[float] = []
    used, started = processor_seconds(pid), perf_counter()
    handles = []
    while perf_counter() - started < seconds:
        handles.append(len(os.listdir(f"/proc/{pid}/fd")))
        gaps += [gap for each in asyncio.run(streams(port, clients, tokens)) for gap in each.gaps]
    percentiles = quantiles(gaps, n=100)
    share = (processor_seconds(pid) - used) / (perf_counter() - started)
    found = f"median {percentiles[49]:.4f} s, p99 {percentiles[98]:.4f} s, most {max(gaps):.4f} s"
    print(f"{median(handles):.0f} handles, {len(gaps)} gaps, {found}", flush=True)
    return percentiles[49], percentiles[98], share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--size", type=int, default=10_000, help="connections of the crowd")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="of each turn")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if arguments.port is not None:
        os.nice(19)  # the crowd is elsewhere: its own work must not delay the others'
        asyncio.run(_crowd(arguments.port, arguments.size))
        return
    alone, beside = [], []
    with served(arguments.clients) as (process, port):
        wait_until_ready(port)
        given = process.pid, port, arguments.clients, arguments.tokens, arguments.seconds
        asyncio.run(streams(port, 1, 1))  # loads the model
        for _ in range(arguments.rounds):
            alone.append(_turn(*given))
            with _beside_a_crowd(port, arguments.size):
                beside.append(_turn(*given))
    print("| 64 streams | median between pieces | p99 | the server's share of a core |\n|---|--:|--:|--:|")
    for name, turns in (("alone", alone), (f"beside {arguments.size} connections", beside)):
        middle, late, share = (median(values) for values in zip(*turns, strict=True))
        print(f"| {name} | {1e3 * middle:.1f} ms | {1e3 * late:.1f} ms | {share:.0%} |")
    ratio = median(with_[1] / without[1] for without, with_ in zip(alone, beside, strict=True))
    print(f"p99 beside the crowd / alone: {ratio:.2f} (median of ratios)")


if __name__ == "__main__":
    main()
