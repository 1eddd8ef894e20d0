"""Measure a worker's cost per token: `python -m benchmarks.worker [--model FILE] [--rounds N]`.

A model in this process, and a worker through an event loop, stream the same answers in turns. The overhead is
the additional time of this process and the worker together over the bare engine. One thread computes, so that
no thread spins while it waits for another. On a core with two threads, the overhead also includes the
slowdown of the engine by the parent on the other thread.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import chaski
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.channels.worker.client import Worker

STREAMS = (1, 8, 32)
ANSWERS = 32
# With a high temperature over all tokens, an answer does not end early.
OPTIONS: dict[str, Any] = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "num_predict": 100}


class Round(NamedTuple):
    """Microseconds per token: processor times of all threads of each process, then by the clock."""

    engine: float
    parent: float
    worker: float
    overhead: float
    clock_engine: float
    clock_worker: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="guide")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{'µs a token':12}" + "".join(f"{name:>14}" for name in Round._fields))
    for streams in STREAMS:
        rounds = list(measure(arguments.model, streams, arguments.rounds))
        medians = map(statistics.median, zip(*rounds, strict=True))
        print(f"{streams:3} streams " + "".join(f"{median:14.1f}" for median in medians))


def measure(path: str, streams: int, rounds: int) -> Iterator[Round]:
    with ExitStack() as stack:
        model = stack.enter_context(chaski.load(path, threads=1, parallel=streams))
        worker = stack.enter_context(Worker(path, threads=1, parallel=streams))
        worker.info()
        pid = worker.pid
        assert pid is not None
        for index in range(-1, rounds):
            here, _, clock = timed(os.getpid(), lambda: in_turns(model, streams))
            parent, there, clock_worker = timed(pid, lambda: asyncio.run(together(worker, streams)))
            if index >= 0:  # the first round warms up
                yield Round(here, parent, there, parent + there - here, clock, clock_worker)


def groups(streams: int) -> list[range]:
    """Return the seeds of answers that are made at the same time, one group after the other."""
    return [range(first, first + streams) for first in range(0, ANSWERS, streams)]


def in_turns(model: chaski.LLM, streams: int) -> int:
    """Read with one thread; return the tokens of all answers."""
    tokens = 0
    for seeds in groups(streams):
        running = [model.stream("hello", seed=seed, **OPTIONS) for seed in seeds]
        while running:
            events = [(stream, next(stream)) for stream in running]
            tokens += sum(event.generated_tokens for _, event in events if isinstance(event, chaski.Done))
            running = [stream for stream, event in events if not isinstance(event, chaski.Done)]
    return tokens


async def together(worker: Worker, streams: int) -> int:
    model = worker.asynchronous()
    tokens = 0
    for seeds in groups(streams):
        tokens += sum(await asyncio.gather(*(read(model, seed) for seed in seeds)))
    return tokens


async def read(model: AsyncModel, seed: int) -> int:
    events = [event async for event in model.stream("hello", seed=seed, **OPTIONS)]
    assert isinstance(events[-1], chaski.Done)
    return events[-1].generated_tokens


def timed(pid: int, run: Callable[[], int]) -> tuple[float, float, float]:
    """Return microseconds per token: of this process, of another one, and by the clock."""
    clock, here, there = perf_counter(), process_time(), processor_time(pid)
    tokens = run()
    times = process_time() - here, processor_time(pid) - there, perf_counter() - clock
    here, there, clock = (seconds / tokens * 1e6 for seconds in times)
    return here, there, clock


def processor_time(pid: int) -> float:
    """Return the processor seconds of all threads of a process."""
    threads = Path(f"/proc/{pid}/task")
    return (
        sum(int((threads / name / "schedstat").read_text().split()[0]) for name in os.listdir(threads)) / 1e9
    )


if __name__ == "__main__":
    main()
