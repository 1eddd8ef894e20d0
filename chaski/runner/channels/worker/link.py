"""One end of the socket between a worker and its parent: messages of bytes, each after its length."""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from contextlib import suppress

from chaski.errors import OptionError, WorkerError

__all__ = ["MAX_FRAME", "Link"]

MAX_FRAME = 64 << 20
"""Largest size of a message in bytes; a prompt of a million tokens takes about 7 million."""

_LENGTH = struct.Struct("<I")
_PIECE = 1 << 16  # bytes to read at a time


class Link:
    """Messages in both directions, which `codec.py` encodes. Send from any thread, receive from one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._read = bytearray()
        self._frames: deque[bytes] = deque()
        self._sending = threading.Lock()

    def send(self, data: bytes) -> None:
        """Queue a message for `flush`. Raises OptionError if it is too large."""
        if len(data) > MAX_FRAME:
            raise OptionError(f"a request of {len(data)} bytes is too large; the limit is {MAX_FRAME} bytes")
        self._frames.append(_LENGTH.pack(len(data)) + data)

    def flush(self) -> None:
        """Send the whole queue at once; blocks while the other end does not read.

        If the other end is closed, nothing is raised: `receive` returns no more messages.
        """
        with self._sending, suppress(OSError):
            self._socket.sendall(self._take_queued())

    def flush_some(self) -> bool:
        """Send as much of the queue as possible without blocking -> whether the queue is empty."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            data = self._take_queued()
            with suppress(BlockingIOError):
                data = data[self._socket.send(data, socket.MSG_DONTWAIT) :]
            if data:
                self._frames.appendleft(data)
            return not data
        except OSError:
            return True
        finally:
            self._sending.release()

    def receive(self) -> list[bytes]:
        """The messages that have come; waits for the first of them. None come at the end of the stream.

        An incomplete message at the end is not among them. Raises WorkerError for one that is too long.
        """
        messages: list[bytes] = []
        with suppress(ConnectionResetError):
            while not messages and (piece := self._socket.recv(_PIECE)):
                self._read += piece
                messages = self._whole_frames()
        return messages

    def shutdown(self) -> None:
        """Shut down both directions: the other end and `receive` reach the end of the stream."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket once no thread is receiving from it."""
        self.shutdown()
        self._socket.close()

    def _take_queued(self) -> bytes:
        return b"".join(self._frames.popleft() for _ in range(len(self._frames)))

    def _whole_frames(self) -> list[bytes]:
        """Take the complete messages from the received bytes."""
        frames, end = [], 0
        while len(self._read) >= end + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._read, end)
            if length > MAX_FRAME:
                raise WorkerError(
                    f"a message of {length} bytes was announced; the limit is {MAX_FRAME} bytes"
                )
            begin = end + _LENGTH.size
            if len(self._read) < begin + length:
                break
            end = begin + length
            frames.append(bytes(self._read[begin:end]))
        del self._read[:end]
        return frames
