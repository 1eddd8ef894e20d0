"""Values that members send each other while they compute, from one piece of a graph to another."""

from __future__ import annotations

import threading
from typing import Any

import numpy.typing as npt

from chaski.errors import ClusterError
from chaski.ml.sharded.frames import Frames

__all__ = ["Exchange"]


class Exchange:
    """The connections of one member to all others, one for each direction.

    A thread for each connection takes what comes, so that nobody who sends has to wait for a reader.
    """

    def __init__(self) -> None:
        self._targets: dict[int, Frames] = {}
        self._sources: dict[int, Frames] = {}
        self._changed = threading.Condition()
        self._values: dict[tuple[int, int, str], npt.NDArray[Any]] = {}
        self._given_up: dict[int, int] = {}
        self._ended: str | None = None
        self._run = -1

    def send_to(self, member: int, frames: Frames) -> None:
        """Use a connection for what is sent to a member."""
        with self._changed:
            self._targets[member] = frames
            self._changed.notify_all()

    def receive_from(self, member: int, frames: Frames) -> None:
        """Use a connection for what a member sends."""
        with self._changed:
            self._sources[member] = frames
            self._changed.notify_all()
        threading.Thread(
            target=self._receive, args=(member, frames), name="chaski-values", daemon=True
        ).start()

    def wait_connected(self, members: int, seconds: float) -> bool:
        """Wait until so many other members are connected -> whether they are."""
        with self._changed:
            return self._changed.wait_for(
                lambda: len(self._sources) == len(self._targets) == members, seconds
            )

    def begin(self, run: int) -> None:
        """Forget what is left of earlier runs."""
        with self._changed:
            self._run = run
            self._values = {key: value for key, value in self._values.items() if key[1] >= run}

    def send(self, member: int, run: int, value: str, array: npt.NDArray[Any]) -> None:
        """Send a value of a run. Raises OSError where the member is gone."""
        self._targets[member].send({"run": run, "value": value}, [array])

    def give_up(self, run: int) -> None:
        """Tell all members that no value of this run will come any more."""
        for frames in self._targets.values():
            try:
                frames.send({"run": run})
            except OSError:
                continue  # whoever watches that member says so

    def take(self, member: int, run: int, value: str) -> npt.NDArray[Any]:
        """Wait for a value of a run. Raises ClusterError where it will not come."""
        key = member, run, value
        with self._changed:
            self._changed.wait_for(
                lambda: key in self._values
                or self._given_up.get(member, -1) >= run
                or self._ended is not None
            )
            if key not in self._values:
                raise ClusterError(self._ended or "another node could not compute this batch")
            return self._values.pop(key)

    def close(self, reason: str = "the model was closed") -> None:
        """End all connections; whoever waits for a value gets an error."""
        with self._changed:
            self._ended = self._ended or reason
            self._changed.notify_all()
            connections = [*self._targets.values(), *self._sources.values()]
        for frames in connections:
            frames.close()

    def _receive(self, member: int, frames: Frames) -> None:
        try:
            while True:
                fields, arrays = frames.receive()
                self._put(member, int(fields["run"]), fields.get("value"), arrays)
        except (OSError, EOFError, ClusterError, ValueError, KeyError):
            with self._changed:
                self._ended = self._ended or "the connection to another node ended"
                self._changed.notify_all()

    def _put(self, member: int, run: int, value: str | None, arrays: list[npt.NDArray[Any]]) -> None:
        with self._changed:
            if value is None:
                self._given_up[member] = run
            elif run >= self._run:
                self._values[member, run, value] = arrays[0]
            self._changed.notify_all()
