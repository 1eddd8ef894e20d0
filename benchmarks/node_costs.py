"""Measure the work of one node among several on this machine.

It measures the pieces of a model on the first of several nodes, the processor time of a value at both ends of
a TLS connection, and the time of the serving process per token.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

import chaski
from benchmarks.make_models import write
from benchmarks.part_of_model import measure_pieces
from benchmarks.shapes import Vocabulary
from benchmarks.shapes.llama import Llama
from benchmarks.shards import KEY, models_on, running_nodes, written_key
from benchmarks.simulated.shards import Node, Work, work_of
from chaski.cli.bench import BenchResult, Workload
from chaski.cli.bench import measure as run_workload
from chaski.env import Environment
from chaski.ml import CPUOptions, open_backend
from chaski.ml.machine import largest_cache
from chaski.ml.sharded.exchange import Exchange
from chaski.ml.sharded.frames import Frames
from chaski.ml.sharded.links import Listener, connect

__all__ = [
    "PREFILL",
    "TYPE",
    "NodeCosts",
    "node_costs",
    "rates_on",
    "sizes_of",
]

TYPE = "Q4_K_M"
PREFILL = 512
# Numbers of nodes, of which one is measured. With a model split by layers, a single node has all of them.
_MEMBERS = {"rows": (2, 4, 8), "layers": (1, 2)}
_HOST = "127.0.0.1"
# Rows and widths of the measured values, and the number of repetitions.
_VALUES = ((1, 512, 400), (1, 2048, 400), (64, 2048, 40), (512, 2048, 20))


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """The costs of one node for a token, for a prompt's batch, and for values.

    `message` and `byte` are seconds of the processors at both ends, for a value and for each of its bytes.
    """

    decode: Node
    prefill: Node
    message: float
    byte: float

    def with_memory(self, bandwidth: float) -> NodeCosts:
        """Return the same node with another memory bandwidth in bytes per second.

        A faster memory scales caches and cores, too. Times without computation do not change.
        """
        factor = bandwidth / self.decode.bandwidth
        faster = max(1.0, factor)
        decode, prefill = (
            replace(
                node,
                bandwidth=node.bandwidth * factor,
                rate=node.rate * faster,
                cached=node.cached * faster,
            )
            for node in (self.decode, self.prefill)
        )
        return dataclasses.replace(self, decode=decode, prefill=prefill)


def node_costs(
    folder: Path, path: Path, threads: int, repeat: int, split: str, beside: bool = False
) -> NodeCosts:
    """Measure this machine as a node with this many threads, and print the results.

    path    model file; its share on one of eight nodes should be far larger than the caches
    beside  measure while another node with one thread uses the same memory
    """
    with busy_neighbour(path) if beside else nullcontext():
        decode = _fitted_node(path, threads, 1, repeat, split)
    prefill = _fitted_node(path, threads, PREFILL, max(2, repeat // 8), split)
    message, byte = _value_costs()
    batch = _seconds_of_the_head(folder)
    print(f"a value: {message * 1e6:.0f} µs and {byte * 1e9:.2f} ns a byte; a batch: {batch * 1e3:.2f} ms")
    return NodeCosts(replace(decode, batch=batch), replace(prefill, batch=batch), message, byte)


@contextmanager
def busy_neighbour(path: Path) -> Iterator[None]:
    """Run another process that constantly computes pieces of one token on one thread."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_compute, args=(path, there))
    process.start()
    here.recv()
    yield
    process.kill()
    process.join()


def _compute(path: Path, started: Connection) -> None:
    while True:
        with closing(open_backend("cpu", CPUOptions(1, variants=Environment.read().variants))) as inner:
            measure_pieces(path, "rows", 2, inner, 1, 10)
            started.send(None)
            measure_pieces(path, "rows", 2, inner, 1, 400)


def _fitted_node(path: Path, threads: int, tokens: int, repeat: int, split: str) -> Node:
    """Fit the constant time of a piece and the rates of its products to pieces of several nodes.

    For one token, these are the rates of matrices read from memory and of matrices read ahead.
    """
    slow = float("inf")
    found = _timed_work(path, threads, tokens, repeat, split)
    if tokens > 1:
        amounts = [(float(work.products), seconds) for work, seconds in found]
        piece_seconds, rate = _fitted(f"{split}, {tokens} tokens", amounts, "billion products/s")
        return Node(piece_seconds, slow, rate)
    amounts = [(float(work.num_bytes), seconds) for work, seconds in found]
    piece_seconds, bandwidth = _fitted(f"{split}, a token", amounts, "GB/s")
    if split == "layers":
        return Node(piece_seconds, bandwidth, slow)
    ahead = largest_cache() // 2
    found = _timed_work(path, threads, tokens, repeat, split, waits=True)
    amounts = [(float(work.num_bytes), seconds) for work, seconds in found if work.num_bytes <= ahead]
    _, cached = _fitted(f"{split}, a token, matrices read ahead", amounts, "GB/s")
    return Node(piece_seconds, bandwidth, slow, ahead=ahead, cached=cached)


def _timed_work(
    path: Path, threads: int, tokens: int, repeat: int, split: str, waits: bool = False
) -> Sequence[tuple[Work, float]]:
    """Return the work and seconds of each piece of one node among several. `waits`: see `measure_pieces`."""
    found = []
    for members in _MEMBERS[split]:
        with closing(open_backend("cpu", CPUOptions(threads, variants=Environment.read().variants))) as inner:
            cut, seconds = measure_pieces(path, split, members, inner, tokens, repeat, waits)
        for piece, each in zip(cut.pieces[0], seconds, strict=True):
            work = work_of(piece, cut.weights, sizes_of(tokens))
            # The last layer has only one row of outputs, from attention on.
            if split == "layers" or work.products > work.num_bytes * tokens / 2:
                found.append((work, each))
    return found


def _fitted(title: str, amounts: Sequence[tuple[float, float]], kind: str) -> tuple[float, float]:
    """Fit seconds by a constant and a rate of amounts; return both, and print the error of the fit."""
    points = np.array([(1.0, *each) for each in amounts])
    # Relative errors count: the small pieces determine the constant.
    constant, slope = _line(points)
    predicted = points[:, :2] @ [constant, slope]
    single = np.abs(predicted / points[:, 2] - 1).mean()
    print(
        f"{title}: a piece {constant * 1e6:.0f} µs, {1e-9 / slope:.1f} {kind}; single pieces are off by "
        f"{single:.0%} on average, all together by {predicted.sum() / points[:, 2].sum() - 1:+.1%}",
        flush=True,
    )
    return constant, 1 / slope


def sizes_of(tokens: int) -> Mapping[str, int]:
    """Return the sizes of a batch of one sequence in which one token has an output."""
    return {"tokens": tokens, "outputs": 1}


def _value_costs() -> tuple[float, float]:
    """Return the processor seconds at both ends for a value, and for each of its bytes."""
    command = [sys.executable, "-m", "benchmarks.node_costs"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        exchange = Exchange()
        port = int(process.stdout.readline())
        for is_outwards in (True, False):
            frames = Frames(connect(_HOST, port, KEY))
            frames.send({"is_outwards": is_outwards})
            if is_outwards:
                exchange.send_to(0, frames.values())
            else:
                exchange.receive_from(0, frames.values())
        points = []
        for rows, width, repeat in _VALUES:
            value = np.ones((rows, width), np.float32)
            times = []
            for run in range(repeat):
                exchange.begin(run)
                begin = time.perf_counter()
                exchange.send(0, rows, 0, value)
                exchange.take(0, rows, 0, _wait)
                times.append((time.perf_counter() - begin) / 2)
            points.append((1.0, float(value.nbytes), float(np.quantile(times, 0.25))))
        process.stdin.close()
        exchange.close()
    return _line(np.array(points))


def _line(points: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Fit seconds, the last column, by a constant and a slope with the least relative errors."""
    (constant, slope), *_ = np.linalg.lstsq(points[:, :2] / points[:, 2:], np.ones(len(points)), rcond=None)
    return float(constant), float(slope)


def main() -> None:
    """Act as the other end of `_value_costs`: send each value back until the connection ends."""
    exchange = Exchange()

    def take(connection: socket.socket) -> None:
        frames = Frames(connection)
        fields, _ = frames.receive()
        if fields["is_outwards"]:
            exchange.receive_from(0, frames.values())
        else:
            exchange.send_to(0, frames.values())

    with closing(Listener(_HOST, 0, KEY, take)) as listener:
        print(listener.port, flush=True)
        exchange.wait_connected(1, 10)
        for rows, _, repeat in _VALUES:
            for run in range(repeat):
                exchange.begin(run)
                exchange.send(0, rows, 0, exchange.take(0, rows, 0, _wait))
        sys.stdin.read()  # until the last value has arrived


def _wait(descriptor: int) -> None:
    """Wait for a value without doing other work."""


def _seconds_of_the_head(folder: Path) -> float:
    """Return the seconds per token of a minimal model, on one node in a separate process."""
    shape = Llama(1, 256, 4, 2, 64, 512, 5e5, 2048, Vocabulary("llama-bpe", 1024, 256, 400))
    path, key = folder / "nothing.gguf", written_key(folder)
    write(path, shape, TYPE, "nearly nothing")
    with running_nodes(key, 1) as addresses:
        found = rates_on(addresses, key, "layers", path, Workload(prompt=8, generate=200, depth=0, batch=1))
    return 1 / max(found.decode_tokens_per_second)


def rates_on(addresses: Sequence[str], key: Path, split: str, path: Path, workload: Workload) -> BenchResult:
    """Compute a workload on running nodes several times."""
    with models_on(addresses, key, split), chaski.load(path, context=workload.context) as model:
        return run_workload(model, workload, range(3), 0.0)


if __name__ == "__main__":
    main()
