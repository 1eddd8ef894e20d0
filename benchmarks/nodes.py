"""What several nodes give for a model that is split over them: `python -m benchmarks.nodes`.

Measured here: the pieces of one node, as the first of 2, 4 and 8 (of two layers with the shapes of the 8B
model, by rows), what a value costs the processors at both ends of a TLS connection, and what the serving
process takes for a token. All else is simulated from that, by `chaski/ml/sharded/simulation.py`, with the
pieces that the models are really cut into. `--memory` assumes nodes that read so many GB/s instead of the
measured rate, and multiply faster by as much.

    python -m benchmarks.nodes --threads 1
    python -m benchmarks.nodes --threads 1 --memory 63
    python -m benchmarks.nodes --check     needs root: two nodes of one thread, and what is predicted for them
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

import chaski
from benchmarks.make_models import write, write_hollow
from benchmarks.part_of_model import CutModel, measure_pieces
from benchmarks.shapes import SHAPES, Vocabulary
from benchmarks.shapes.llama import Llama
from chaski.cli.bench import BenchResult, Workload
from chaski.cli.bench import measure as run_workload
from chaski.env import Environment
from chaski.ml import CPUOptions, open_backend
from chaski.ml.machine import largest_cache
from chaski.ml.sharded.exchange import Exchange
from chaski.ml.sharded.frames import Frames
from chaski.ml.sharded.links import Listener, connect
from chaski.ml.sharded.simulation import Batch, Link, Node, Simulated, Work, simulate, work_of

_EIGHT = cast("Llama", SHAPES["llama-3.1-8b"])
MODELS: Mapping[str, Llama] = {
    "8B": _EIGHT,
    "70B": dataclasses.replace(_EIGHT, num_layers=80, hidden_size=8192, num_heads=64, ffn_size=28672),
}
LINKS = {"1 GbE, 0.2 ms": (2e-4, 125e6), "10 GbE, 0.05 ms": (5e-5, 1250e6)}
TYPE = "Q4_K_M"
PREFILL = 512
# Tokens of a batch of a prompt by layers, where `num_batch` is PREFILL.
PART = 128
# Rows and width of the values whose times are measured, and how often.
_VALUES = ((1, 512, 400), (1, 2048, 400), (64, 2048, 40), (512, 2048, 20))
_KEY = b"what the nodes of a benchmark know"


@dataclass(frozen=True, slots=True)
class Measured:
    """One node: what it takes for a token, for a prompt's batch, and for values."""

    decode: Node
    prefill: Node
    message: float
    byte: float

    def faster(self, factor: float) -> Measured:
        """The same node with a faster memory and faster cores, and what is not computing as it is."""
        nodes = [
            replace(
                node,
                bandwidth=node.bandwidth * factor,
                rate=node.rate * factor,
                cached=node.cached * factor,
            )
            for node in (self.decode, self.prefill)
        ]
        return dataclasses.replace(self, decode=nodes[0], prefill=nodes[1])


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="of the node that is measured")
    parser.add_argument("--repeat", type=int, default=20, help="tokens in each measurement")
    parser.add_argument("--memory", type=float, nargs="*", default=[], help="GB/s of assumed nodes")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--check", action="store_true", help="compare with two nodes in network namespaces")
    arguments = parser.parse_args()
    if arguments.check:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder), arguments.repeat)
        return
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), arguments.threads, arguments.repeat)
        for node in (
            measured,
            *(measured.faster(m * 1e9 / measured.decode.bandwidth) for m in arguments.memory),
        ):
            print(f"\nnodes that read {node.decode.bandwidth / 1e9:.1f} GB/s")
            for name in arguments.models:
                table(Path(folder), name, node, arguments.nodes)


def measure(folder: Path, threads: int, repeat: int, shape: Llama = _EIGHT) -> Measured:
    """Measure this machine as a node of so many threads, and say what was found."""
    path = folder / "layers.gguf"
    write(path, dataclasses.replace(shape, num_layers=2), TYPE, "two layers")
    decode = fitted_node(path, threads, 1, repeat)
    prefill = fitted_node(path, threads, PREFILL, max(2, repeat // 8))
    message, byte = value_costs()
    batch = seconds_of_the_head(folder)
    print(f"a value: {message * 1e6:.0f} µs and {byte * 1e9:.2f} ns a byte; a batch: {batch * 1e3:.2f} ms")
    return Measured(replace(decode, batch=batch), replace(prefill, batch=batch), message, byte)


def fitted_node(path: Path, threads: int, tokens: int, repeat: int) -> Node:
    """Fit what a piece takes besides its products, and their rates, to pieces of 2, 4 and 8 nodes.

    For one token these are the rate of matrices that come from memory, and of those that were read ahead.
    """
    slow = float("inf")
    found = timed_work(path, threads, tokens, repeat)
    if tokens > 1:
        amounts = [(float(work.products), seconds) for work, seconds in found]
        piece_seconds, rate = fitted(f"{tokens} tokens", amounts, "billion products/s")
        return Node(piece_seconds, slow, rate)
    amounts = [(float(work.num_bytes), seconds) for work, seconds in found]
    piece_seconds, bandwidth = fitted("a token", amounts, "GB/s")
    ahead = largest_cache() // 2
    found = timed_work(path, threads, tokens, repeat, waits=True)
    amounts = [(float(work.num_bytes), seconds) for work, seconds in found if work.num_bytes <= ahead]
    _, cached = fitted("a token, matrices read ahead", amounts, "GB/s")
    return Node(piece_seconds, bandwidth, slow, ahead=ahead, cached=cached)


def timed_work(
    path: Path, threads: int, tokens: int, repeat: int, waits: bool = False
) -> Sequence[tuple[Work, float]]:
    """What each piece of one of 2, 4 and 8 nodes computes, and its seconds. `waits`: see `measure_pieces`."""
    found = []
    for members in (2, 4, 8):
        with closing(open_backend("cpu", CPUOptions(threads, variants=Environment.read().variants))) as inner:
            cut, seconds = measure_pieces(path, "rows", members, inner, tokens, repeat, waits)
        for piece, each in zip(cut.pieces[0], seconds, strict=True):
            work = work_of(piece, cut.weights, sizes_of(tokens))
            # The last layer has one row of outputs only, from attention on.
            if work.products > work.num_bytes * tokens / 2:
                found.append((work, each))
    return found


def fitted(title: str, amounts: Sequence[tuple[float, float]], kind: str) -> tuple[float, float]:
    """Fit seconds by a constant and a rate of amounts -> these two; say how far that is off."""
    points = np.array([(1.0, *each) for each in amounts])
    # Relative errors count: the small pieces say what a piece takes besides its products.
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
    """The sizes of a batch of one sequence, one of whose tokens has an output."""
    return {"tokens": tokens, "outputs": 1}


def value_costs() -> tuple[float, float]:
    """Seconds of the processors at both ends for a value, and for each of its bytes."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_echo, args=(there,))
    process.start()
    exchange = Exchange()
    port = here.recv()
    for is_outwards in (True, False):
        frames = Frames(connect("127.0.0.1", port, _KEY))
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
            exchange.send(0, rows, value)
            exchange.take(0, rows, wait)
            times.append((time.perf_counter() - begin) / 2)
        points.append((1.0, float(value.nbytes), float(np.quantile(times, 0.25))))
    here.send(None)
    process.join()
    exchange.close()
    return _line(np.array(points))


def _line(points: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Fit seconds, the last column, by a constant and a slope: the relative errors are the least."""
    (constant, slope), *_ = np.linalg.lstsq(points[:, :2] / points[:, 2:], np.ones(len(points)), rcond=None)
    return float(constant), float(slope)


def _echo(pipe: Connection) -> None:
    """Send each value back, until there are no more."""
    exchange = Exchange()

    def take(connection: socket.socket) -> None:
        frames = Frames(connection)
        fields, _ = frames.receive()
        if fields["is_outwards"]:
            exchange.receive_from(0, frames.values())
        else:
            exchange.send_to(0, frames.values())

    with closing(Listener("127.0.0.1", 0, _KEY, take)) as listener:
        pipe.send(listener.port)
        exchange.wait_connected(1, 10)
        for rows, _, repeat in _VALUES:
            for run in range(repeat):
                exchange.begin(run)
                exchange.send(0, rows, exchange.take(0, rows, wait))
        pipe.recv()  # until the last one is there


def wait(descriptor: int) -> None:
    """Do nothing else while a value is on its way."""


def seconds_of_the_head(folder: Path) -> float:
    """Seconds a token of a model of nearly nothing, on one node in a process of its own."""
    shape = Llama(1, 256, 4, 2, 64, 512, 5e5, 2048, Vocabulary("llama-bpe", 1024, 256, 400))
    path, key = folder / "nothing.gguf", folder / "nodes.key"
    write(path, shape, TYPE, "nearly nothing")
    key.write_bytes(_KEY)
    key.chmod(0o600)
    command = [sys.executable, "-m", "chaski", "shard", "--listen", "127.0.0.1:0", "--key", str(key)]
    with subprocess.Popen([*command, "--threads", "1"], stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        try:
            address = re.search(r"127\.0\.0\.1:\d+", node.stderr.readline())
            assert address is not None, "the node does not say where it listens"
            workload = Workload(prompt=8, generate=200, depth=0, batch=1)
            found = rates_on([address[0]], key, "layers", path, workload)
        finally:
            node.kill()
    return 1 / max(found.decode_tokens_per_second)


def rates_on(addresses: Sequence[str], key: Path, split: str, path: Path, workload: Workload) -> BenchResult:
    """Compute a workload on running nodes, a few times."""
    given = {"CHASKI_NODES": ",".join(addresses), "CHASKI_NODES_KEY": str(key), "CHASKI_SPLIT": split}
    os.environ.update(given)
    with chaski.load(path, context=workload.context) as model:
        found = run_workload(model, workload, range(3), 0.0)
    for name in given:  # nodes that start later are none of a node's own
        del os.environ[name]
    return found


def table(folder: Path, name: str, measured: Measured, counts: Sequence[int]) -> None:
    """Print what numbers of nodes give, and what a token would take if a part of the exchange were free."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_hollow(path, MODELS[name], TYPE, name)
    alone = CutModel(path, "layers", 1)
    still = Link(0.0, 1e18)
    one = [simulated(alone, tokens, measured, still).seconds for tokens in (1, PREFILL)]
    print(
        f"{name}: on one node {one[0] * 1e3:.0f} ms a token, and {one[1]:.1f} s for {PREFILL} tokens\n\n"
        f"| nodes | split | link | ms a token | times | nothing read ahead | without latency | without bytes "
        f"| without messages | {PREFILL} tokens, s | times |\n|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for members in counts:
        for split in ("rows", "layers"):
            cut = CutModel(path, split, members)
            for title, (latency, bandwidth) in LINKS.items():
                link = Link(latency, bandwidth, measured.message, measured.byte)
                waiting = dataclasses.replace(measured, decode=replace(measured.decode, ahead=0))
                cases = [
                    (measured, link),
                    (waiting, link),
                    (measured, replace(link, latency=0.0)),
                    (measured, replace(link, bandwidth=1e18, byte=0.0)),
                    (measured, replace(link, message=0.0)),
                ]
                times = [simulated(cut, 1, *case).seconds for case in cases]
                # By layers, batches of a prompt follow each other.
                part = PREFILL if split == "rows" else PART
                prompt = simulated(cut, PREFILL, measured, link, part).seconds
                shown = [f"{times[0] * 1e3:.0f}", f"{one[0] / times[0]:.2f}"]
                shown += [f"{each * 1e3:.0f}" for each in times[1:]]
                shown += [f"{prompt:.1f}", f"{one[1] / prompt:.2f}"]
                print(f"| {members} | {split} | {title} | {' | '.join(shown)} |", flush=True)


def check(folder: Path, repeat: int) -> None:
    """Compute a 1B model on two nodes of one thread, on links of set bandwidth, and predict it."""
    from tests.cluster.namespaces import Namespaces

    shape = cast("Llama", SHAPES["llama-3.2-1b"])
    measured = measure(folder, 1, repeat, shape)
    path = folder / "1B.gguf"
    write(path, shape, TYPE, "1B")
    workload = Workload(prompt=256, generate=64, depth=0, batch=1)
    print(
        "\n| split | link | ms a token | predicted | 256 tokens, s | predicted |\n|---|---|--:|--:|--:|--:|"
    )
    for rate, bandwidth in (("1gbit", 125e6), ("300mbit", 37.5e6)):
        with closing(Namespaces(2, rate)) as machines:
            command = ["shard", "--key", str(folder / "nodes.key"), "--threads", "1", "--listen"]
            addresses = [f"{machines.address(node)}:11500" for node in range(2)]
            for node, address in enumerate(addresses):
                process = machines.start(node, [*command, address])
                assert process.stderr is not None
                process.stderr.readline()
            for split in ("rows", "layers"):
                found = rates_on(addresses, folder / "nodes.key", split, path, workload)
                real = [1 / max(found.decode_tokens_per_second), 256 / max(found.prefill_tokens_per_second)]
                cut, link = CutModel(path, split, 2), Link(0.0, bandwidth, measured.message, measured.byte)
                part = PREFILL if split == "rows" else PART
                predicted = [simulated(cut, tokens, measured, link, part).seconds for tokens in (1, 256)]
                pairs = [
                    f"{each * unit:.{digits}f} | {other * unit:.{digits}f} ({other / each - 1:+.0%})"
                    for each, other, unit, digits in zip(real, predicted, (1e3, 1), (1, 2), strict=True)
                ]
                print(f"| {split} | {rate} | {' | '.join(pairs)} |", flush=True)


def simulated(
    cut: CutModel, tokens: int, measured: Measured, link: Link, most_tokens: int = PREFILL
) -> Simulated:
    """Simulate tokens of one sequence, the last of which has an output, in batches of `most_tokens`."""
    node = measured.decode if tokens == 1 else measured.prefill
    counts = [min(most_tokens, tokens - begin) for begin in range(0, tokens, most_tokens)]
    batches = []
    for number, count in enumerate(counts, 1):
        sizes = {**sizes_of(count), "outputs": int(number == len(counts))}
        work = [
            [work_of(piece, cut.weights, sizes) if piece.graph.nodes else None for piece in some]
            for some in cut.pieces
        ]
        batches.append(Batch([node] * len(cut.pieces), work, sizes))
    return simulate(cut.pieces, batches, link, node.batch * len(counts))


if __name__ == "__main__":
    main()
