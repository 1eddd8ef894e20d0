"""The places of members: an address on another machine, or a thread of this process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chaski.ml.backend import HOST
from chaski.ml.sharded.frames import At, Channel, Frames, Message, Rows
from chaski.ml.sharded.links import connect
from chaski.ml.sharded.session import OpenBackend
from chaski.ml.sharded.sessions import Sessions

__all__ = ["LocalNodes", "Node", "RemoteNode"]


class Node(Protocol):
    """The place of a member. `name` is for messages; other members connect to `address`."""

    @property
    def name(self) -> str:
        """The name in messages, such as `node 10.0.0.1:11500` or `cuda:0`."""

    @property
    def address(self) -> Any:
        """The address in the `join` request, to which other members connect."""

    @property
    def is_far(self) -> bool:
        """True if it is reached over a network, where fewer bytes are faster."""

    def connect(self) -> Channel:
        """Open another connection to the member. Raises ClusterError if it cannot be reached."""

    def device_name(self, device: str) -> str:
        """Return a name for one of its devices that is unique among all nodes."""


class RemoteNode:
    """A `chaski shard` process that knows the key."""

    is_far = True

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self.address: tuple[str, int] = host, port
        self._key = key
        self._short_name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.name = f"node {self._short_name}"

    def connect(self) -> Channel:
        return Frames(connect(*self.address, self._key))

    def device_name(self, device: str) -> str:
        return self._short_name if device == HOST else f"{self._short_name} {device}"


class LocalNodes:
    """Members in threads of this process, one for each device."""

    def __init__(self, openings: Mapping[str, OpenBackend]) -> None:
        """`openings`: the function that opens each device's backend, by the device's name."""
        self._sessions = [Sessions(self._connect, opening) for opening in openings.values()]
        self.nodes: Sequence[Node] = [_LocalNode(self, *each) for each in enumerate(openings)]

    def _connect(self, number: int) -> Channel:
        """Open a connection to a member. A thread waits for the first message on it."""
        ours, theirs = pipe()
        take = self._sessions[number].take
        threading.Thread(target=take, args=(theirs,), name="chaski-member", daemon=True).start()
        return ours


class _LocalNode:
    is_far = False

    def __init__(self, together: LocalNodes, number: int, device: str) -> None:
        self._together = together
        self.address = number
        self.name = device

    def connect(self) -> Channel:
        return self._together._connect(self.address)

    def device_name(self, device: str) -> str:
        return device


def pipe() -> tuple[Pipe, Pipe]:
    """Return both ends of a connection within this process."""
    one, other = queue.SimpleQueue[Any](), queue.SimpleQueue[Any]()
    return Pipe(one, other), Pipe(other, one)


class _PipeEnd:
    """One end of a connection within this process. Values that are put in here come out at the other end."""

    def __init__(self, incoming: queue.SimpleQueue[Any], outgoing: queue.SimpleQueue[Any]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False

    def close(self) -> None:
        """End the connection; a thread that receives from it notices the end."""
        self._is_closed = True
        self._incoming.put(None)
        self._outgoing.put(None)

    def _put(self, message: Any) -> None:
        if self._is_closed:
            raise BrokenPipeError("the connection ended")
        self._outgoing.put(message)

    def _take(self) -> Any:
        message = self._incoming.get()
        if message is None:
            self._is_closed = True
            self._incoming.put(None)
            raise EOFError("the connection ended")
        return message


class Pipe(_PipeEnd):
    """A `Channel` within this process. Nothing is encoded, but arrays are copied as on a socket."""

    def send(self, fields: Mapping[str, Any], arrays: Sequence[npt.NDArray[Any]] = ()) -> None:
        self._put((fields, [np.array(array, order="C") for array in arrays]))

    def receive(self) -> Message:
        found: Message = self._take()
        return found

    def expect_within(self, seconds: float | None) -> None:
        """Do nothing: the other end cannot be lost without this one."""

    def finish_within(self, seconds: float) -> None:
        """Do nothing: the other end cannot be lost without this one."""

    def values(self) -> ValuePipe:
        return ValuePipe(self._incoming, self._outgoing)


class ValuePipe(_PipeEnd):
    """A `ValueChannel` within this process."""

    def awaited(self) -> None:
        """Return None: there is no descriptor."""

    def send(self, at: At, rows: Rows) -> None:
        self._put((at, np.array(rows, order="C") if isinstance(rows, np.ndarray) else rows))

    def receive(self) -> tuple[At, Rows]:
        found: tuple[At, Rows] = self._take()
        return found
