"""Kills replicas of a real cluster in the middle of streams, again and again, and compares all answers.

    python -m tests.cluster.kill --rounds 200 --streams 64

Each round asks for so many answers at once, from a cluster of Ray on this machine, and kills processes at
random: those of replicas, and the workers in them. Every answer must be the one of a model alone. It needs
the extra `cluster`, and minutes; the default tests do the same with replicas in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import chaski
from chaski.cluster.connection import LOCAL, Cluster
from chaski.cluster.model import ClusterModel
from chaski.cluster.scaling import Bounds
from chaski.formats.quant import QuantType
from tests.tiny_llama import write_tiny_llama

OPTIONS: dict[str, Any] = {"num_predict": 400, "temperature": 1.0, "ignore_eos": True}


def main() -> None:
    """Run all rounds; the first difference ends with an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two kills, on average")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    requests = [(f"story {number}", {**OPTIONS, "seed": number}) for number in range(arguments.streams)]
    with TemporaryDirectory() as folder:
        path = write_tiny_llama(
            Path(folder) / "tiny.gguf", matrices=QuantType.Q8_0, llama__context_length=2048
        )
        with chaski.load(path, threads=1, parallel=16, context=1024) as alone:
            expected = [alone.generate(prompt, **options).token_ids for prompt, options in requests]
        cluster = Cluster(LOCAL, Bounds(arguments.replicas, arguments.replicas), threads=1)
        model = cluster.open_model(path, parallel=16, context=1024)
        model.tokenize("loads it")
        try:
            _run(model, requests, expected, arguments)
        finally:
            model.close()
            cluster.close()


def _run(
    model: ClusterModel, requests: list[tuple[str, dict[str, Any]]], expected: list[Any], arguments: Any
) -> None:
    chance = random.Random(arguments.seed)
    kills: dict[str, int] = {"replica": 0, "worker": 0}
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.wait(chance.expovariate(1 / arguments.every)):
            states = model.replicas()
            if len(states) < arguments.replicas:
                continue
            what = chance.choice(list(kills))
            with suppress(OSError, IndexError):
                pid = chance.choice(states).pid
                os.kill(pid if what == "replica" else chance.choice(children(pid)), signal.SIGKILL)
                kills[what] += 1

    async def all_answers() -> list[Any]:
        ask = model.asynchronous().generate
        return await asyncio.gather(*(ask(prompt, **options) for prompt, options in requests))

    thread = threading.Thread(target=kill)
    thread.start()
    started = time.monotonic()
    try:
        for number in range(arguments.rounds):
            found = [answer.token_ids for answer in asyncio.run(all_answers())]
            assert found == expected, f"round {number} has other answers"
            print(
                f"round {number + 1}: {len(found)} answers as alone; {kills['replica']} replicas and "
                f"{kills['worker']} workers killed, {time.monotonic() - started:.0f} s",
                flush=True,
            )
    finally:
        is_over.set()
        thread.join()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, in any of its threads."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in lists for child in each.read_text().split()]


if __name__ == "__main__":
    main()
