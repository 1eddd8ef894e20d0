"""What a request needs of the replicas of a model, wherever they run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from chaski.errors import ChaskiError
from chaski.runner.channels.messages import CallHandle, ModelCall, ReplyCallback

__all__ = ["Answering", "Ended", "Losses", "Place", "ReplicaState", "Replicas"]


class Answering(Protocol):
    """A replica that takes calls. When it is lost, its open calls fail with WorkerError."""

    num_lost: int
    """The number of its running answers when it was lost; 0 before."""

    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Send a call. Raises OptionError for what cannot be sent."""


class Ended:
    """The handle of a call that has ended already."""

    def cancel(self) -> None:
        """Do nothing."""


class Place(Struct, frozen=True):
    """The target of a request: replica number, connection, and prompt tokens to compute.

    `name` and `node` are those of the replica, as in `ReplicaState`.
    """

    replica: int
    peer: Answering
    tokens: int
    name: str
    node: str


class ReplicaState(Struct, frozen=True):
    """The current state of a replica: `answers` of its `places` are taken. `shards` is as in `Member`."""

    name: str
    node: str
    pid: int
    places: int
    answers: int
    is_leaving: bool
    generation: int
    shards: tuple[tuple[str, int], ...] = ()


class Losses:
    """Counts what the loss of replicas did to requests. Safe to use from several threads.

    resumed    times that an answer continued after the loss of its replica
    suspected  requests that ended because replicas repeatedly died while they answered them
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.resumed = self.suspected = 0

    def count_resumed(self) -> None:
        """Count an answer that continues."""
        with self._lock:
            self.resumed += 1

    def count_suspected(self) -> None:
        """Count a request that ended."""
        with self._lock:
            self.suspected += 1


class Replicas(Protocol):
    """The replicas of a model. Safe to use from several threads."""

    losses: Losses

    @property
    def moved_at(self) -> float:
        """The time of the last observed progress in loading, on `time.monotonic`."""

    @property
    def failed_loads(self) -> int:
        """The number of loads in a row that failed."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def num_open(self) -> int:
        """The number of replicas that take requests."""

    @property
    def num_waiting(self) -> int:
        """The number of calls that wait for a replica."""

    @property
    def problem(self) -> ChaskiError | None:
        """Why no replica could load the model, or None while one still might."""

    @property
    def trouble(self) -> str:
        """Why there is no replica now, as far as it is known; for messages."""

    def states(self) -> list[ReplicaState]:
        """Describe all replicas."""

    def any_peer(self) -> Answering | None:
        """Return the replica for a call that takes no place, or None if there is no replica."""

    def take(self, blocks: Sequence[int], prompt_tokens: int, without: Sequence[int] = ()) -> Place | None:
        """Choose a replica for a request and assign it until `ended`, or return None if there is none."""

    def computed(self, place: Place) -> None:
        """Record that the prompt of a request is computed."""

    def ended(self, place: Place) -> None:
        """Record that a request has ended, successfully or not."""

    def num_answers(self, place: Place) -> int:
        """Return the number of the replica's requests, or 0 if it is gone."""

    def measured(self, place: Place, prefill: float | None, answer_seconds: float) -> None:
        """Record the measured speed of an answer."""

    def later(self, call: Callable[[], None]) -> None:
        """Call `call` from another thread when new replicas may be available."""

    def close(self) -> None:
        """End all replicas. Their requests fail with ClosedError."""
