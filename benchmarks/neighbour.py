"""Measure the cost of neighbours: `python -m benchmarks.neighbour MODEL [--threads N] [--rounds N]`.

Decodes alone and next to a neighbour, in turns. Prints the rate, its share of the rate alone, and the share
of a core that the neighbour used. Neighbours are a process that is always busy, on any processor (`free`) or
only on the first one (`pinned`); a process that is busy for 1.5 of every 10 ms (`brief`); and the same model
decoding in another process (`model`). A turn is repeated if other processes used more than a twentieth of a
core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import chaski
from chaski.cli.bench import Workload, measure

ALONE = "alone"
NEIGHBOURS = ("free", "pinned", "brief", "model")
BUSY = "while True: pass"
BRIEF = """
import time
while True:
    end = time.perf_counter() + 0.0015
    while time.perf_counter() < end: pass
    time.sleep(0.0085)
"""


class Turn(NamedTuple):
    """Tokens per second, and the cores that the neighbour used meanwhile."""

    rate: float
    taken: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--generate", type=int, default=100, help="tokens in a turn")
    parser.add_argument("--beside", nargs="*", choices=NEIGHBOURS, default=NEIGHBOURS)
    parser.add_argument("--forever", action="store_true", help="act as the neighbour: decode until killed")
    arguments = parser.parse_args()
    workload = Workload(prompt=8, generate=arguments.generate, depth=0, batch=1)
    with chaski.load(arguments.model, threads=arguments.threads, context=workload.context) as model:
        decode(model, workload)
        while arguments.forever:
            decode(model, workload)
        turns: dict[str, list[Turn]] = {kind: [] for kind in (ALONE, *arguments.beside)}
        for _ in range(arguments.rounds):
            for kind, found in turns.items():
                found.append(turn(model, workload, kind, arguments))
    for kind, found in turns.items():
        rates = [one.rate for one in found]
        share = statistics.median(
            one.rate / alone.rate for one, alone in zip(found, turns[ALONE], strict=True)
        )
        taken = statistics.median(one.taken for one in found)
        print(
            f"{kind:7} {statistics.median(rates):8.1f} tok/s ({min(rates):.1f} to {max(rates):.1f})"
            f"  {share:4.0%}  the neighbour {taken:.2f} cores"
        )


def turn(model: chaski.LLM, workload: Workload, kind: str, arguments: argparse.Namespace) -> Turn:
    """Decode once next to a neighbour of this kind, undisturbed by other processes."""
    own = os.getpid()
    while True:
        with neighbour(kind, arguments) as other:
            started, before, theirs = time.perf_counter(), others_seconds(own), seconds_of(other)
            rate = decode(model, workload)
            seconds, theirs = time.perf_counter() - started, seconds_of(other) - theirs
            if others_seconds(own) - before - theirs < 0.05 * seconds:
                return Turn(rate, theirs / seconds)


def decode(model: chaski.LLM, workload: Workload) -> float:
    """Return the rate of one answer in tokens per second."""
    return measure(model, workload, [0], 0).decode_tokens_per_second[0]


def others_seconds(own: int) -> float:
    """Return the processor time of all processes except one."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK") - seconds_of(own)


def seconds_of(process: int | None) -> float:
    """Return the processor time of a process; 0 if it does not exist."""
    if process is None:
        return 0.0
    behind_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(behind_name[11]) + int(behind_name[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def neighbour(kind: str, arguments: argparse.Namespace) -> Iterator[int | None]:
    """Run a neighbour of this kind; yield its process."""
    if kind == ALONE:
        yield None
        return
    command = [sys.executable, "-c", BRIEF if kind == "brief" else BUSY]
    if kind == "model":
        command = [sys.executable, "-m", "benchmarks.neighbour", arguments.model, "--forever"]
        command += [] if arguments.threads is None else ["--threads", str(arguments.threads)]
    with subprocess.Popen(command) as process:
        try:
            if kind == "pinned":
                os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
            time.sleep(1.5 if kind == "model" else 0.2)  # until it is busy
            yield process.pid
        finally:
            process.kill()


if __name__ == "__main__":
    main()
