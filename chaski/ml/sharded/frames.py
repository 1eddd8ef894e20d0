"""Messages on a connection: fields as JSON, followed by arrays in their form in memory.

The values that members send each other for every layer have no JSON, because it would cost as much time as
the computation.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ssl import SSLSocket
from time import monotonic
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from chaski.errors import ClusterError
from chaski.ml.sharded.rounding import RoundedRows

__all__ = ["At", "Channel", "Frames", "Message", "Rows", "ValueChannel", "Values"]

Message = tuple[Mapping[str, Any], list[npt.NDArray[Any]]]
"""The fields of a message, and its arrays."""


Rows = npt.NDArray[np.float32] | RoundedRows
"""Rows (n, width) of a value."""


class At(NamedTuple):
    """The place of rows: the numbers of a run, of its value, and of a part of that."""

    run: int
    value: int
    part: int


class ValueChannel(Protocol):
    """One end of a connection for values: rows and their places."""

    def send(self, at: At, rows: Rows) -> None:
        """Send rows. Raises OSError if the other end is gone."""

    def awaited(self) -> int | None:
        """Return a descriptor that becomes readable when more data arrive.

        None if data have arrived already, or if there is no descriptor.
        """

    def receive(self) -> tuple[At, Rows]:
        """Return the next rows. Raises EOFError at the end, OSError, or ClusterError."""

    def close(self) -> None:
        """End the connection; a thread that receives from it notices the end."""


class Channel(Protocol):
    """One end of a connection that carries messages one way: any thread may send, or one thread receives."""

    def send(self, fields: Mapping[str, Any], arrays: Sequence[npt.NDArray[Any]] = ()) -> None:
        """Send a message. Raises OSError if the other end is gone."""

    def receive(self) -> Message:
        """Return the next message. Raises EOFError at the end, OSError, or ClusterError if malformed."""

    def expect_within(self, seconds: float | None) -> None:
        """Make `receive` raise TimeoutError if nothing arrives for that time. Some channels ignore this."""

    def finish_within(self, seconds: float) -> None:
        """Make `receive` raise TimeoutError after that time in total, until `expect_within` is called."""

    def values(self) -> ValueChannel:
        """Continue on the same connection with values instead of messages."""

    def close(self) -> None:
        """End the connection; a thread that receives from it notices the end."""


_LENGTH = struct.Struct("<I")
_VALUE = struct.Struct("<qIIIIIQ")
_BUFFER = 1 << 16
_MOST_FIELDS = 256 << 20
_MOST_ARRAY = 1 << 36
_TYPES = frozenset({"<f4", "<f2", "<i4", "<i8", "|u1"})


class _Connection:
    """One end of a connection, read in large pieces."""

    def __init__(self, connection: socket.socket, rest: bytes = b"") -> None:
        """`rest`: bytes that were already read from the connection but not consumed."""
        self._connection = connection
        self._sending, self._reading = threading.Lock(), threading.Lock()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._buffer[: len(rest)] = rest
        self._begin, self._end = 0, len(rest)
        self._deadline: float | None = None  # in the time of `monotonic`

    def close(self) -> None:
        """End the connection; a thread that receives from it notices the end."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with self._reading:  # once closed, its descriptor may be reused for another file
            self._connection.close()
            self._begin = self._end

    def _bytes(self, count: int) -> bytearray:
        found = bytearray(count)
        self._fill(memoryview(found))
        return found

    def _fill(self, view: memoryview) -> None:
        with self._reading:
            while view:
                if self._begin == self._end and len(view) >= _BUFFER:
                    view = view[self._read(view) :]
                    continue
                if self._begin == self._end:
                    self._begin, self._end = 0, self._read(self._buffer)
                count = min(len(view), self._end - self._begin)
                view[:count] = self._buffer[self._begin : self._begin + count]
                self._begin += count
                view = view[count:]

    def _read(self, view: memoryview) -> int:
        if self._deadline is not None:
            left = self._deadline - monotonic()
            if left <= 0:
                raise TimeoutError("a message did not come in time")
            self._connection.settimeout(left)
        try:
            count = self._connection.recv_into(view)
        except ValueError:  # another thread has closed the connection
            count = 0
        if not count:
            raise EOFError("the connection ended")
        return count


class Frames(_Connection):
    """A `Channel` on a socket."""

    def send(self, fields: Mapping[str, Any], arrays: Sequence[npt.NDArray[Any]] = ()) -> None:
        known = [np.ascontiguousarray(array) for array in arrays]
        described = [[array.dtype.str, list(array.shape)] for array in known]
        text = json.dumps([fields, described], separators=(",", ":")).encode()
        parts: list[bytes | memoryview] = [_LENGTH.pack(len(text)), text]
        parts += [_bytes(array) for array in known if array.size]
        size = sum(map(len, parts))
        with self._sending:
            if size < 1 << 16:
                self._connection.sendall(b"".join(parts))
            else:
                for part in parts:
                    self._connection.sendall(part)

    def receive(self) -> Message:
        (length,) = _LENGTH.unpack(self._bytes(_LENGTH.size))
        if length > _MOST_FIELDS:
            raise ClusterError(f"a message announces {length} bytes of fields, which is too many")
        try:
            fields, described = json.loads(self._bytes(length))
            empty = [_empty(type, shape) for type, shape in described]
        except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
            raise ClusterError(f"a message cannot be read: {error or type(error).__name__}") from None
        if not isinstance(fields, dict):
            raise ClusterError(f"the fields of a message are {type(fields).__name__}, not an object")
        for array in empty:
            self._fill(_bytes(array))
        return fields, empty

    def expect_within(self, seconds: float | None) -> None:
        self._deadline = None
        self._connection.settimeout(seconds)

    def finish_within(self, seconds: float) -> None:
        self._deadline = monotonic() + seconds

    def values(self) -> Values:
        return Values(self._connection, bytes(self._buffer[self._begin : self._end]))


class Values(_Connection):
    """A `ValueChannel` on a socket."""

    def __init__(self, connection: socket.socket, rest: bytes) -> None:
        super().__init__(connection, rest)
        self._head = memoryview(bytearray(_VALUE.size))

    def send(self, at: At, rows: Rows) -> None:
        if isinstance(rows, RoundedRows):
            shape, block, data = (rows.rows, rows.width), rows.block, _bytes(rows.data)
        else:
            shape, block, data = rows.shape, 0, _bytes(np.ascontiguousarray(rows))
        head = _VALUE.pack(*at, *shape, block, len(data))
        with self._sending:
            if len(data) < 1 << 16:
                self._connection.sendall(head + data)
            else:
                self._connection.sendall(head)
                self._connection.sendall(data)

    def awaited(self) -> int | None:
        is_there = self._begin < self._end
        if isinstance(self._connection, SSLSocket):
            is_there = is_there or self._connection.pending() > 0
        return None if is_there else self._connection.fileno()

    def receive(self) -> tuple[At, Rows]:
        self._fill(self._head)
        run, value, part, count, width, block, size = _VALUE.unpack(self._head)
        if count * width > _MOST_ARRAY or not count * width <= size <= 5 * count * width + count:
            raise ClusterError(f"a value announces {count} rows of {width} numbers in {size} bytes")
        if not block and size != 4 * count * width:
            raise ClusterError(f"{count} rows of {width} numbers do not take {size} bytes")
        try:
            data = np.empty(size, np.uint8)
        except MemoryError:
            raise ClusterError(f"there is no memory for a value of {size} bytes") from None
        if size:
            self._fill(data.data)
        if block:
            return At(run, value, part), RoundedRows(count, width, block, data)
        return At(run, value, part), data.view(np.float32).reshape(count, width)


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _empty(type: str, shape: Sequence[int]) -> npt.NDArray[Any]:
    if type not in _TYPES or len(shape) > 8 or min(shape, default=0) < 0 or math.prod(shape) > _MOST_ARRAY:
        raise ValueError(f"an array of {type} {shape}")
    return np.empty(shape, type)
