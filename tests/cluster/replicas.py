"""Replicas of a model in this process, which stand for replicas on other machines."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import chaski
from chaski.cluster.autoscaling import Bounds
from chaski.cluster.links import Listener, new_key
from chaski.cluster.members import Member
from chaski.cluster.model import ClusterModel
from chaski.cluster.peer import Patience
from chaski.cluster.replica_set import ReplicaSet
from chaski.cluster.serving import Connection
from chaski.runner.channels.engine_channel import EngineChannel
from chaski.runner.channels.messages import CallHandle, Channel, ModelCall, ReplyCallback


class Replica:
    """A loaded model that listens. `asked` contains received calls; `delay` is called before each."""

    def __init__(self, name: str, path: Path, key: bytes, **options: Any) -> None:
        self.name = name
        self.llm = chaski.load(path, threads=1, **options)
        self.asked: list[ModelCall] = []
        self.generation = 0
        self.is_silent = False
        self._channel: Channel = EngineChannel(self.llm)
        self._ends: list[socket.socket] = []
        self.listener = Listener("127.0.0.1", key, self._accept)

    def member(self, **changes: Any) -> Member:
        known = {"name": self.name, "address": self.listener.address, "node": "here", "pid": 1}
        return Member(**{**known, "places": self.llm.engine.parallel, **changes}, generation=self.generation)

    @property
    def num_links(self) -> int:
        """Return the number of connections so far."""
        return len(self._ends)

    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        self.asked.append(call)
        return self._channel.start(call, lambda reply: None if self.is_silent else put(reply))

    def check_open(self) -> None:
        self._channel.check_open()

    def kill(self) -> None:
        """Break all connections at once, like the death of the process."""
        self.break_links()
        with suppress(RuntimeError):
            self.listener.close()

    def break_links(self) -> None:
        """Break all connections at once, and accept new ones."""
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.kill()
        self._channel.close()  # type: ignore[attr-defined]
        self.llm.close()

    def _accept(self, end: socket.socket) -> None:
        self._ends.append(end)
        Connection(end, self).serve()


class Replicas:
    """A cluster of one model. `add` adds replicas, and `kill` removes them."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.key = new_key()
        self.wanted: list[int] = []
        self._path, self._options = path, options
        self._lock = threading.Lock()
        self._living: dict[str, Replica] = {}
        self._all: list[Replica] = []
        self._leaving: list[Replica] = []
        self.extra: list[Member] = []
        self._models: list[ClusterModel] = []

    def add(self, number: int = 1, generation: int = 0) -> list[Replica]:
        added = [
            Replica(f"replica {len(self._all) + index}", self._path, self.key, **self._options)
            for index in range(number)
        ]
        for replica in added:
            replica.generation = generation
        with self._lock:
            self._all += added
            self._living.update({replica.name: replica for replica in added})
        return added

    def kill(self, replica: Replica) -> None:
        with self._lock:
            self._living.pop(replica.name, None)
            self._leaving = [each for each in self._leaving if each is not replica]
        replica.kill()

    def list(self) -> Sequence[Member] | None:
        with self._lock:
            leaving = [replica.member(is_leaving=True) for replica in self._leaving]
            return [*(replica.member() for replica in self._living.values()), *leaving, *self.extra]

    def scale(self, number: int) -> None:
        self.wanted.append(number)

    def replace(self, generation: int) -> None:
        """Replace each replica, as Ray does: an old one leaves when it has no more answers."""
        for old in list(self._living.values()):
            self.leave(old)
            self.add(generation=generation)

    def leave(self, replica: Replica) -> None:
        with self._lock:
            del self._living[replica.name]
            self._leaving.append(replica)

    def close(self) -> None:
        for replica in self._all:
            replica.close()

    def model(self, bounds: Bounds | None = None, patience: Patience | None = None) -> ClusterModel:
        """Return a model that these replicas serve; `end` closes it and its watching threads."""
        self._models.append(ClusterModel(ReplicaSet(self, bounds, patience)))
        return self._models[-1]

    def end(self) -> None:
        for model in self._models:
            model.close()
        self.close()


Opener = Callable[..., Replicas]
