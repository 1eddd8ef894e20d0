"""Measure the server's costs: `python benchmarks/server.py` starts one with the bundled model.

Clients, server and model share the machine. Linux only: processor time and memory are read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
OPTIONS = {"temperature": 1.5, "top_k": 0, "top_p": 1.0}


@dataclass(slots=True)
class Stream:
    """The arrival times of an answer's pieces in seconds, and the server's token count."""

    moments: list[float]
    tokens: int

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.moments, self.moments[1:], strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="maximum for each client")
    parser.add_argument("--parallel", type=int, default=64, help="answers computed together")
    parser.add_argument("--idle", type=int, default=1000, help="idle connections")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for words in (["--help"], ["list"]):
        print(f"| `chaski {' '.join(words)}` | {_best_command(words):.2f} s |")
    started = time.perf_counter()
    with served(arguments.parallel) as (process, port):
        wait_until_ready(port)
        print(f"| from the start of the server until it answers | {time.perf_counter() - started:.2f} s |")
        asyncio.run(streams(port, 1, arguments.tokens))  # loads the model
        for _ in range(arguments.rounds):
            _measure_streams(process.pid, port, arguments.clients, arguments.tokens)
        _measure_idle(process.pid, port, arguments.idle)


def _best_command(words: list[str]) -> float:
    """Return the shortest of five runs in seconds."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "chaski", *words], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return min(times)


@contextmanager
def served(
    parallel: int, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a separate server; yield its port. `settings` are further environment variables."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    own = {"OLLAMA_HOST": f"{HOST}:{port}", "OLLAMA_NUM_PARALLEL": str(parallel)}
    environment = {**os.environ, **own, **(settings or {})}
    command = [sys.executable, "-m", "chaski", "serve"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield process, port
    finally:
        process.terminate()
        process.wait(20)


def wait_until_ready(port: int) -> None:
    """Wait until the server answers."""
    while True:
        try:
            with socket.create_connection((HOST, port)) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if client.recv(64).startswith(b"HTTP/1.1 200"):
                    return
        except ConnectionRefusedError:
            time.sleep(0.002)


def _measure_streams(pid: int, port: int, clients: int, tokens: int) -> None:
    used, started = processor_seconds(pid), time.perf_counter()
    answers = asyncio.run(streams(port, clients, tokens))
    seconds, used = time.perf_counter() - started, processor_seconds(pid) - used
    gaps = [gap for each in answers for gap in each.gaps]
    count = sum(each.tokens for each in answers)
    percentiles = statistics.quantiles(gaps, n=100)
    median, p99, longest = (1e3 * gap for gap in (percentiles[49], percentiles[98], max(gaps)))
    print(
        f"| {clients} clients, {count} tokens in {seconds:.2f} s | between two pieces of a stream "
        f"{median:.1f} ms median, {p99:.1f} ms p99, {longest:.1f} ms at most; "
        f"server {1e3 * used / count:.3f} ms of processor time a token |"
    )


async def streams(port: int, clients: int, tokens: int) -> list[Stream]:
    """Let clients ask at once, and read their answers."""
    return await asyncio.gather(*(_stream(port, number, tokens) for number in range(clients)))


async def _stream(port: int, number: int, tokens: int) -> Stream:
    question = [{"role": "user", "content": f"number {number}: how do I use fewer cores?"}]
    options = {**OPTIONS, "seed": number, "num_predict": tokens}
    body = json.dumps({"model": "guide", "messages": question, "options": options}).encode()
    reader, writer = await asyncio.open_connection(HOST, port)
    head = f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    moments = []
    while True:
        line = await reader.readline()
        if line.startswith(b"{"):
            piece = json.loads(line)
            assert "error" not in piece, piece["error"]
            moments.append(time.perf_counter())
            if piece["done"]:
                writer.close()
                return Stream(moments, piece["eval_count"])
        assert line, "the server broke off its answer"


def _measure_idle(pid: int, port: int, count: int) -> None:
    before = _resident_bytes(pid)
    connections = [socket.create_connection((HOST, port)) for _ in range(count)]
    time.sleep(1)
    grown = _resident_bytes(pid) - before
    for connection in connections:
        connection.close()
    print(f"| {count} idle connections | {grown / 1e6:.1f} MB |")


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
