"""Kill processes of a real cluster during streams, again and again, and compare all answers.

    python -m tests.cluster.kill --rounds 200 --streams 64
    python -m tests.cluster.kill --rounds 20 --streams 64 --every 15 --nodes 3

Each round requests several answers at once. Meanwhile random processes are killed: replicas, their workers,
and the process that talks to Ray. With `--nodes`, which needs root, the replicas are on nodes in network
namespaces; then nodes (their raylets), the head and links are also lost and return. Every stream must equal
that of a model alone. It needs the extra `cluster` and several minutes; the default tests do the same with
replicas in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import threading
import time
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import chaski
from chaski.chat.events import Text
from chaski.cluster.autoscaling import Bounds
from chaski.cluster.connection import LOCAL, Cluster
from chaski.cluster.model import ClusterModel
from chaski.cluster.routed_model import RoutedModel
from chaski.formats.quant import QuantType
from tests.cluster.nodes import Nodes
from tests.tiny_llama import write_tiny_llama

OPTIONS: dict[str, Any] = {"num_predict": 400, "temperature": 1.0, "ignore_eos": True}
Answer = tuple[str, tuple[int, ...]]


class KillsProcesses(AbstractContextManager["KillsProcesses"], Protocol):
    """Kills processes within a block. `kills` counts them by kind."""

    kills: dict[str, int]


def main() -> None:
    """Run all rounds; end with an error at the first difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=0, help="nodes in network namespaces; 0 for none")
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two kills, on average")
    parser.add_argument("--living", type=int, help="kill while so many replicas answer.  [default: all]")
    parser.add_argument("--minutes", type=float, default=30.0, help="no round begins after so many")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # all started processes end in any case
    os.environ["CHASKI_PREFIX_CACHE"] = "memory"  # block files would be stored among the user's
    requests = [(f"story {number}", {**OPTIONS, "seed": number}) for number in range(arguments.streams)]
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        path = write_tiny_llama(
            Path(folder) / "tiny.gguf", matrices=QuantType.Q8_0, llama__context_length=2048
        )
        with chaski.load(path, threads=1, parallel=16, context=1024) as alone:
            answers = [alone.generate(prompt, **options) for prompt, options in requests]
        nodes = None
        if arguments.nodes:
            nodes = Nodes(arguments.nodes)
            stack.callback(nodes.close)
        bounds = Bounds(arguments.replicas, arguments.replicas)
        cluster = Cluster(nodes.address if nodes else LOCAL, bounds, threads=1)
        stack.callback(cluster.close)
        model = cluster.open_model(path, parallel=16, context=1024)
        stack.callback(model.close)
        model.tokenize("loads it")
        killer = Killer(cluster, model, nodes, arguments)
        run_rounds(model, requests, [(each.text, each.token_ids) for each in answers], killer, arguments)


class Killer:
    """Kills a random process now and then, if enough replicas run, and counts the kills."""

    def __init__(self, cluster: Cluster, model: ClusterModel, nodes: Nodes | None, arguments: Any) -> None:
        self._cluster, self._model, self._nodes = cluster, model, nodes
        self._living, self._every = arguments.living or arguments.replicas, arguments.every
        self._chance = random.Random(arguments.seed)
        self._is_over = threading.Event()
        self.kills = dict.fromkeys(["replica", "worker", "ray process"], 0)
        if nodes is not None:
            self.kills |= dict.fromkeys(["raylet", "link", "head"], 0)
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._is_over.wait(self._chance.expovariate(1 / self._every)):
            states = self._model.replicas()
            if len(states) < self._living or not any(state.answers for state in states):
                continue
            # The local cluster ends with the process that talks to it, and nodes end with their head; these
            # kills take longer than others.
            rare = {"ray process": 0.1} if self._nodes is None else {"head": 0.2}
            weights = [rare.get(what, 1.0) for what in self.kills]
            (what,) = self._chance.choices(list(self.kills), weights)
            with suppress(OSError, IndexError, ValueError):
                self.kills[what] += self._kill(what, self._chance.choice(states).pid)

    def _kill(self, what: str, replica: int) -> bool:
        if what in ("replica", "worker", "ray process"):
            pid = {"replica": replica, "ray process": self._cluster._process._popen.pid}.get(what)
            os.kill(self._chance.choice(children(replica)) if pid is None else pid, signal.SIGKILL)
            return True
        assert self._nodes is not None
        if what == "head":
            return self._nodes.kill_head()
        node = node_of(replica, self._nodes)
        if what == "raylet":
            return self._nodes.kill_raylet(node)
        self._nodes.cut(node, self._chance.choice([1.0, 5.0, 20.0]))
        return True


def run_rounds(
    model: RoutedModel,
    requests: list[tuple[str, dict[str, Any]]],
    expected: list[Answer],
    killer: KillsProcesses,
    arguments: Any,
) -> None:
    """Ask for all answers again and again during kills. Raises AssertionError at a difference."""
    longest_pause = 0.0

    async def answer(prompt: str, options: dict[str, Any]) -> Answer:
        nonlocal longest_pause
        text, heard_at = "", time.monotonic()
        ids: list[int] = []
        async for event in model.asynchronous().stream(prompt, **options):
            longest_pause = max(longest_pause, time.monotonic() - heard_at)
            heard_at = time.monotonic()
            if isinstance(event, Text):
                text += event.text
                ids += event.token_ids
        return text, tuple(ids)

    async def all_answers() -> list[Answer | BaseException]:
        asked = (answer(prompt, options) for prompt, options in requests)
        return await asyncio.gather(*asked, return_exceptions=True)

    started = time.monotonic()
    with killer:
        for number in range(1, arguments.rounds + 1):
            found = asyncio.run(all_answers())
            wrong = [each for each, right in zip(found, expected, strict=True) if each != right]
            killed = ", ".join(f"{count} of {what}" for what, count in killer.kills.items())
            print(
                f"round {number}: {len(found) - len(wrong)} of {len(found)} streams as alone; "
                f"kills: {killed}; longest pause {longest_pause:.1f} s, "
                f"{time.monotonic() - started:.0f} s in all",
                flush=True,
            )
            assert not wrong, f"round {number} has other answers: {str(wrong[0])[:500]}"
            if time.monotonic() - started > arguments.minutes * 60:
                break


def children(pid: int) -> list[int]:
    """Return the child processes of all threads of a process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in lists for child in each.read_text().split()]


def node_of(pid: int, nodes: Nodes) -> int:
    """Return the node whose network a process uses. Raises ValueError if there is none."""
    network = Path(f"/proc/{pid}/ns/net").stat().st_ino
    places = [Path(f"/run/netns/chaski-{node}").stat().st_ino for node in range(nodes.number)]
    return places.index(network)


if __name__ == "__main__":
    main()
