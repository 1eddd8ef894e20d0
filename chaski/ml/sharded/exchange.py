"""Values that members send each other while they compute, from one piece of a graph to another."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.errors import ClusterError
from chaski.ml.sharded.frames import Frames

__all__ = ["Exchange"]

# Values of up to so many bytes are sent at once: they fit in what the system keeps of a connection.
_SMALL = 1 << 14

_ENDED = "the connection to another node ended"

_Waiting = queue.SimpleQueue["tuple[int, str, npt.NDArray[Any]] | None"]


class Exchange:
    """The connections of one member to all others, one for each direction.

    Whoever computes reads what it waits for itself. A thread for each target sends large values, so that two
    members that send to each other both come to read.
    """

    def __init__(self) -> None:
        self._targets: dict[int, Frames] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._sources: dict[int, Frames] = {}
        self._changed = threading.Condition()
        self._values: dict[tuple[int, str], npt.NDArray[Any]] = {}
        self._run = -1
        self.num_bytes = 0

    def send_to(self, member: int, frames: Frames) -> None:
        """Use a connection for what is sent to a member."""
        waiting: _Waiting = queue.SimpleQueue()
        threading.Thread(target=_send_all, args=(frames, waiting), name="chaski-values", daemon=True).start()
        with self._changed:
            self._targets[member], self._waiting[member] = frames, waiting
            self._changed.notify_all()

    def receive_from(self, member: int, frames: Frames) -> None:
        """Use a connection for what a member sends."""
        with self._changed:
            self._sources[member] = frames
            self._changed.notify_all()

    def wait_connected(self, members: int, seconds: float) -> bool:
        """Wait until so many other members are connected -> whether they are."""
        with self._changed:
            return self._changed.wait_for(
                lambda: len(self._sources) == len(self._targets) == members, seconds
            )

    def begin(self, run: int) -> None:
        """Begin a run: what is left of earlier ones is forgotten."""
        self._run = run
        self._values.clear()

    def send(self, member: int, value: str, array: npt.NDArray[Any]) -> None:
        """Send a value of this run. Raises ClusterError where the member is gone."""
        self.num_bytes += array.nbytes
        if array.nbytes > _SMALL:
            self._waiting[member].put((self._run, value, np.array(array)))
            return
        try:
            self._targets[member].send({"run": self._run, "value": value}, [array])
        except OSError:
            raise ClusterError(_ENDED) from None

    def give_up(self, run: int) -> None:
        """Tell all members that no value of this run will come any more."""
        for frames in self._targets.values():
            try:
                frames.send({"run": run})
            except OSError:
                continue  # the head knows that this member is gone, or will know it soon

    def take(self, member: int, value: str) -> npt.NDArray[Any]:
        """Wait for a value of this run. Raises ClusterError where it will not come."""
        while (found := self._values.pop((member, value), None)) is None:
            try:
                fields, arrays = self._sources[member].receive()
            except (OSError, EOFError):
                raise ClusterError(_ENDED) from None
            if fields.get("run") != self._run:
                continue
            if "value" not in fields:
                raise ClusterError("another node could not compute this batch")
            self._values[member, fields["value"]] = arrays[0]
        return found

    def close(self) -> None:
        """End all connections; whoever waits for a value gets an error."""
        with self._changed:
            connections = [*self._targets.values(), *self._sources.values()]
        for waiting in self._waiting.values():
            waiting.put(None)
        for frames in connections:
            frames.close()


def _send_all(frames: Frames, waiting: _Waiting) -> None:
    """Send what waits, until there is nothing more to come."""
    while (value := waiting.get()) is not None:
        run, name, array = value
        try:
            frames.send({"run": run, "value": name}, [array])
        except OSError:
            return  # whoever waits for an answer of that member is told so
