"""Faults of a running cluster: processes that die or hang, and links that are cut, slow or lossy."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tests.cluster.nodes import Nodes, marked_processes

__all__ = ["Faults"]

_REPLICA, _SHARD = "ray::ServeReplica:chaski-", "ray::Shard"
# Relative frequencies. Nodes, the head and Ray's own processes take longer to come back than others.
_OFTEN = {"worker": 4.0, "load": 3.0, "replica": 2.0, "hung worker": 2.0, "hung replica": 1.0}
_SELDOM = {"ray process": 0.3, "controller": 0.3, "directory": 0.3}
_OF_NODES = {"raylet": 0.7, "head": 0.2, "cut link": 1.0, "slow link": 1.0, "lossy link": 1.0}
_OF_SHARDS = {"shard": 4.0}
# The chance of a fault while a model has no replica that answers.
_WHILE_NONE = 0.1


class Faults:
    """Faults at random times, within a block. `counts` has them by kind.

    mark       of the processes of the cluster and of the server, see `marked_processes`
    every      seconds between two faults, on average
    answering  returns for each model the processes of its replicas that answer. While a model has none, only
               replicas that load are killed, and seldom: on a slow machine nothing would ever be loaded
    has_shards whether several nodes compute each replica
    """

    def __init__(
        self,
        nodes: Nodes | None,
        marks: Collection[str],
        answering: Callable[[], Collection[Collection[int]]],
        every: float,
        seed: int,
        has_shards: bool,
    ) -> None:
        self._nodes, self._marks, self._answering, self._every = nodes, marks, answering, every
        self._kinds = {**_OFTEN, **(_SELDOM if nodes else {}), **(_OF_NODES if nodes else {})}
        self._kinds |= _OF_SHARDS if has_shards else {}
        self._chance = random.Random(seed)
        self._is_over = threading.Event()
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Faults:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        lasting: list[threading.Thread] = []
        while not self._is_over.wait(self._chance.expovariate(1 / self._every)):
            lasting = [each for each in lasting if each.is_alive()]
            kinds = self._kinds
            if not all(self._answering()):
                if self._chance.random() > _WHILE_NONE:
                    continue
                kinds = {"load": 1.0}
            chosen = self._chance.choices(list(kinds), list(kinds.values()), k=9)
            chance = random.Random(self._chance.random())
            lasting.append(threading.Thread(target=self._act_once, args=(chosen, chance)))
            lasting[-1].start()
        for each in lasting:
            each.join()

    def _act_once(self, kinds: Sequence[str], chance: random.Random) -> None:
        """Make a fault of the first kind for which there is something to kill."""
        for kind in kinds:
            with suppress(ProcessLookupError, FileNotFoundError):
                if self._act(kind, chance):
                    self.counts[kind] += 1
                    break

    def _act(self, kind: str, chance: random.Random) -> bool:
        """Make a fault of a kind. Returns whether there was anything to kill."""
        if kind in _OF_NODES:
            return self._act_on_node(kind, chance)
        found = self._targets(kind)
        if not found:
            return False
        pid = chance.choice(found)
        if not kind.startswith("hung"):
            os.kill(pid, signal.SIGKILL)
            return True
        os.kill(pid, signal.SIGSTOP)
        # A hung process is killed by those who watch it, or continues before they notice.
        self._is_over.wait(chance.choice([2.0, 15.0, 60.0]))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        return True

    def _targets(self, kind: str) -> list[int]:
        processes = dict(self._processes())

        def named(begin: str) -> list[int]:
            return [pid for pid, words in processes.items() if words.startswith(begin)]

        replicas = named(_REPLICA)
        match kind:
            case "load":
                # A replica that loads, or its worker; also a worker that is loaded again.
                answering = {pid for each in self._answering() for pid in each}
                loading = [pid for pid in replicas if pid not in answering]
                return loading + [child for pid in loading for child in children(pid)]
            case "replica" | "hung replica":
                return replicas
            case "worker" | "hung worker":
                return [child for pid in replicas for child in children(pid)]
            case "shard":
                shards = named(_SHARD)
                return shards + [child for pid in shards for child in children(pid)]
            case "ray process":
                return [pid for pid, words in processes.items() if "chaski.cluster.ray_process" in words]
            case "controller":
                return named("ray::ServeController")
        return named("ray::Entries")

    def _processes(self) -> Iterator[tuple[int, str]]:
        """Yield the processes of the cluster with their titles. Ray's Python processes hide their mark."""
        waiting = [pid for mark in self._marks for pid, _ in marked_processes(mark)]
        seen: set[int] = set()
        while waiting:
            pid = waiting.pop()
            if pid in seen:
                continue
            seen.add(pid)
            with suppress(OSError):
                yield pid, Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
                waiting += children(pid)

    def _act_on_node(self, kind: str, chance: random.Random) -> bool:
        assert self._nodes is not None
        node = chance.randrange(self._nodes.number)
        match kind:
            case "raylet":
                return self._nodes.kill_raylet(node)
            case "head":
                return self._nodes.kill_head()
            case "cut link":
                self._nodes.cut(node, chance.choice([1.0, 5.0, 20.0]))
            case "slow link":
                self._nodes.slow(node, chance.choice([5.0, 20.0]))
            case _:
                self._nodes.lose(node, chance.choice([5.0, 20.0]))
        return True


def children(pid: int) -> list[int]:
    """Return the child processes of all threads of a process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in lists for child in each.read_text().split()]
