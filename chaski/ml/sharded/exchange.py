"""Exchange of values between members while they compute, from one piece of a graph to another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chaski.errors import ClusterError
from chaski.ml.sharded.frames import At, Rows, ValueChannel
from chaski.ml.sharded.rounding import RoundedRows

__all__ = ["Exchange", "Meanwhile"]

F32 = npt.NDArray[np.float32]

# Rows of up to this many bytes are sent immediately if no others wait to be sent: they fit in the system's
# buffer for a connection.
_SMALL = 1 << 14

_ENDED = "the connection to another node ended"

# Sent instead of a value that will not come.
_NOTHING = (1 << 32) - 1
_NO_ROWS = np.zeros((0, 0), np.float32)

Meanwhile = Callable[[int], None]
"""A function that does useful work until a descriptor is readable or there is no more work."""


class _Target:
    """A connection that sends values to a member. A thread sends large rows and all rows that follow them."""

    def __init__(self, values: ValueChannel) -> None:
        self._values = values
        self._waiting: queue.SimpleQueue[tuple[At, Rows] | None] = queue.SimpleQueue()
        # The number of messages that were left to the thread, and the number that it has sent.
        self._left = self._sent = 0
        threading.Thread(target=self._send_all, name="chaski-values", daemon=True).start()

    def send(self, at: At, rows: Rows) -> None:
        """Send rows now, or leave them to the thread. Raises OSError if the member is gone."""
        if rows.nbytes <= _SMALL and self._left == self._sent:
            self._values.send(at, rows)
            return
        self._left += 1
        self._waiting.put((at, rows if isinstance(rows, RoundedRows) else np.array(rows)))

    def close(self) -> None:
        self._waiting.put(None)
        self._values.close()

    def _send_all(self) -> None:
        """Send waiting rows until the connection is closed."""
        while (each := self._waiting.get()) is not None:
            try:
                self._values.send(*each)
            except OSError:
                return  # threads that wait for a reply from that member receive the error
            self._sent += 1


class _Source:
    """A connection that receives values from a member.

    The thread that waits for values reads them. If many arrive while others compute, a separate thread reads,
    because the system buffers only a limited amount of unread data.
    """

    def __init__(self, values: ValueChannel) -> None:
        self._values = values
        self._found: queue.SimpleQueue[tuple[At, Rows] | Exception] = queue.SimpleQueue()
        # Held while a thread records what it has received and decides whether it continues.
        self._lock = threading.Lock()
        self._is_wanted = self._is_reading = False

    def read_meanwhile(self, is_wanted: bool) -> None:
        """Start a thread that reads values, or stop it after the next value."""
        with self._lock:
            self._is_wanted = is_wanted
            if is_wanted and not self._is_reading:
                self._is_reading = True
                threading.Thread(target=self._read, name="chaski-values", daemon=True).start()

    def receive(self, meanwhile: Meanwhile) -> tuple[At, Rows]:
        """Return the next value. Raises OSError or EOFError at the end, or ClusterError."""
        with self._lock:
            is_found = self._is_reading or not self._found.empty()
        if is_found:
            found = self._found.get()
            if isinstance(found, Exception):
                raise found
            return found
        if (descriptor := self._values.awaited()) is not None:
            meanwhile(descriptor)
        return self._values.receive()

    def close(self) -> None:
        self._values.close()

    def _read(self) -> None:
        is_reading = True
        while is_reading:
            found: tuple[At, Rows] | Exception
            try:
                found = self._values.receive()
            except Exception as error:  # the waiting thread must receive every error
                found = error
            with self._lock:
                self._found.put(found)
                is_reading = self._is_wanted and not isinstance(found, Exception)
                self._is_reading = is_reading


class Exchange:
    """The connections of one member to all others, one for each direction.

    The computing thread reads the values that it waits for, unless there are many rows. One thread per target
    sends large values, so that two members which send to each other do not block each other.
    """

    def __init__(self) -> None:
        self._targets: dict[int, _Target] = {}
        self._sources: dict[int, _Source] = {}
        self._changed = threading.Condition()
        # By source: values, also of later runs, that arrive while the thread waits for another value.
        self._values: dict[tuple[int, At], Rows] = {}
        self._given_up: set[tuple[int, int]] = set()
        self._run = -1
        self.num_bytes = 0

    def send_to(self, member: int, values: ValueChannel) -> None:
        """Set the connection that sends values to a member."""
        with self._changed:
            self._targets[member] = _Target(values)
            self._changed.notify_all()

    def receive_from(self, member: int, values: ValueChannel) -> None:
        """Set the connection that receives values from a member."""
        with self._changed:
            self._sources[member] = _Source(values)
            self._changed.notify_all()

    def wait_connected(self, members: int, seconds: float) -> bool:
        """Wait until `members` other members are connected -> whether they are."""
        with self._changed:
            return self._changed.wait_for(
                lambda: len(self._sources) == len(self._targets) == members, seconds
            )

    def begin(self, run: int, has_many_rows: bool = False) -> None:
        """Begin a run, and drop values of earlier runs.

        has_many_rows  whether values arrive in parts while this member computes others
        """
        self._run = run
        for source in self._sources.values():
            source.read_meanwhile(has_many_rows)
        self._values = {key: rows for key, rows in self._values.items() if key[1].run >= run}
        self._given_up = {key for key in self._given_up if key[1] >= run}

    def send(self, member: int, value: int, part: int, rows: Rows) -> None:
        """Send a part of a value of this run. Raises ClusterError if the member is gone."""
        self.num_bytes += rows.nbytes
        try:
            self._targets[member].send(At(self._run, value, part), rows)
        except OSError:
            raise ClusterError(_ENDED) from None

    def give_up(self, run: int) -> None:
        """Tell all members that this member will send no more values of this run."""
        for target in self._targets.values():
            try:
                target.send(At(run, _NOTHING, 0), _NO_ROWS)
            except OSError:
                continue  # the head notices by itself that this member is gone

    def take(self, member: int, value: int, part: int, meanwhile: Meanwhile) -> F32:
        """Wait for a part of a value of this run, and return its rows as floats.

        Rows that were sent as int8 become floats that round to the same int8. Raises ClusterError if the part
        will not arrive.
        """
        wanted = member, At(self._run, value, part)
        while (found := self._values.pop(wanted, None)) is None:
            if (member, self._run) in self._given_up:
                raise ClusterError("another node could not compute this batch")
            try:
                at, rows = self._sources[member].receive(meanwhile)
            except (OSError, EOFError):
                raise ClusterError(_ENDED) from None
            if at.value == _NOTHING:
                self._given_up.add((member, at.run))
            elif at.run >= self._run:
                self._values[member, at] = rows
        return found.floats() if isinstance(found, RoundedRows) else found

    def close(self) -> None:
        """Close all connections. Threads that wait for a value receive an error."""
        with self._changed:
            targets, sources = list(self._targets.values()), list(self._sources.values())
        for target in targets:
            target.close()
        for source in sources:
            source.close()
