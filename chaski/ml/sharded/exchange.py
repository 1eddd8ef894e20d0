"""Values that members send each other while they compute, from one piece of a graph to another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chaski.errors import ClusterError
from chaski.ml.sharded.frames import Rows, ValueChannel
from chaski.ml.sharded.rounding import RoundedRows

__all__ = ["Exchange", "Meanwhile"]

F32 = npt.NDArray[np.float32]

# Values of up to so many bytes are sent at once: they fit in what the system keeps of a connection.
_SMALL = 1 << 14

_ENDED = "the connection to another node ended"

# What is sent in place of a value that will not come.
_NOTHING = (1 << 32) - 1
_NO_ROWS = np.zeros((0, 0), np.float32)

Meanwhile = Callable[[int], None]
"""Does something of use until a descriptor can be read from, or there is nothing more to do."""

_Waiting = queue.SimpleQueue["tuple[int, int, Rows] | None"]


class Exchange:
    """The connections of one member to all others, one for each direction.

    Whoever computes reads what it waits for itself. A thread for each target sends large values, so that two
    members that send to each other both come to read.
    """

    def __init__(self) -> None:
        self._targets: dict[int, ValueChannel] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._sources: dict[int, ValueChannel] = {}
        self._changed = threading.Condition()
        # By source, run and value: what comes while another one is waited for, of later runs too.
        self._values: dict[tuple[int, int, int], Rows] = {}
        self._given_up: set[tuple[int, int]] = set()
        self._run = -1
        self.num_bytes = 0

    def send_to(self, member: int, values: ValueChannel) -> None:
        """Use a connection for what is sent to a member."""
        waiting: _Waiting = queue.SimpleQueue()
        threading.Thread(target=_send_all, args=(values, waiting), name="chaski-values", daemon=True).start()
        with self._changed:
            self._targets[member], self._waiting[member] = values, waiting
            self._changed.notify_all()

    def receive_from(self, member: int, values: ValueChannel) -> None:
        """Use a connection for what a member sends."""
        with self._changed:
            self._sources[member] = values
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
        self._values = {key: rows for key, rows in self._values.items() if key[1] >= run}
        self._given_up = {key for key in self._given_up if key[1] >= run}

    def send(self, member: int, value: int, rows: Rows) -> None:
        """Send a value of this run. Raises ClusterError where the member is gone."""
        self.num_bytes += rows.nbytes
        if rows.nbytes > _SMALL:
            kept = rows if isinstance(rows, RoundedRows) else np.array(rows)
            self._waiting[member].put((self._run, value, kept))
            return
        try:
            self._targets[member].send(self._run, value, rows)
        except OSError:
            raise ClusterError(_ENDED) from None

    def give_up(self, run: int) -> None:
        """Tell all members that no value of this run will come any more."""
        for values in self._targets.values():
            try:
                values.send(run, _NOTHING, _NO_ROWS)
            except OSError:
                continue  # the head knows that this member is gone, or will know it soon

    def take(self, member: int, value: int, meanwhile: Meanwhile) -> F32:
        """Wait for a value of this run; one that was rounded is what is rounded alike.

        Raises ClusterError where it will not come.
        """
        while (found := self._values.pop((member, self._run, value), None)) is None:
            if (member, self._run) in self._given_up:
                raise ClusterError("another node could not compute this batch")
            source = self._sources[member]
            if (descriptor := source.awaited()) is not None:
                meanwhile(descriptor)
            try:
                run, number, rows = source.receive()
            except (OSError, EOFError):
                raise ClusterError(_ENDED) from None
            if number == _NOTHING:
                self._given_up.add((member, run))
            elif run >= self._run:
                self._values[member, run, number] = rows
        return found.floats() if isinstance(found, RoundedRows) else found

    def close(self) -> None:
        """End all connections; whoever waits for a value gets an error."""
        with self._changed:
            connections = [*self._targets.values(), *self._sources.values()]
        for waiting in self._waiting.values():
            waiting.put(None)
        for values in connections:
            values.close()


def _send_all(values: ValueChannel, waiting: _Waiting) -> None:
    """Send what waits, until there is nothing more to come."""
    while (each := waiting.get()) is not None:
        try:
            values.send(*each)
        except OSError:
            return  # whoever waits for an answer of that member is told so
