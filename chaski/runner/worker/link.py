"""One end of the socket between a worker and its parent: messages of JSON, each behind its length."""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from contextlib import suppress

from chaski.errors import OptionError, WorkerError
from chaski.runner.worker.codec import Message, decode, encode

__all__ = ["MAX_FRAME", "Link"]

MAX_FRAME = 64 << 20
"""Bytes of a message at most; a prompt of a million tokens has about 7 million."""

_LENGTH = struct.Struct("<I")


class Link:
    """Numbered messages in both directions. Send from any thread, receive from one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._file = end.makefile("rb", 1 << 16)
        self._frames: deque[bytes] = deque()
        self._sending = threading.Lock()

    def send(self, number: int, message: Message) -> None:
        """Queue a message for `flush`. Raises OptionError if it is too large or holds what JSON cannot."""
        data = encode(number, message)
        if len(data) > MAX_FRAME:
            raise OptionError(f"a request of {len(data)} bytes is too large; at most {MAX_FRAME} are taken")
        self._frames.append(_LENGTH.pack(len(data)) + data)

    def flush(self) -> None:
        """Send all that is queued, in one piece; waits while the other end does not read.

        When the other end is gone nothing happens here: `receive` tells.
        """
        with self._sending, suppress(OSError):
            count = len(self._frames)
            self._socket.sendall(b"".join(self._frames.popleft() for _ in range(count)))

    def receive(self) -> tuple[int, Message] | None:
        """The next message; None at the end of the stream, and for a message that it cut off.

        Raises WorkerError for what is no message.
        """
        try:
            data = self._frame()
        except ConnectionResetError:
            return None
        return None if data is None else decode(data)

    def shutdown(self) -> None:
        """End both directions: the other end reads the end of the stream, and so does `receive`."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket, when nobody receives any more."""
        self.shutdown()
        self._file.close()
        self._socket.close()

    def _frame(self) -> bytes | None:
        prefix = self._file.read(_LENGTH.size)
        if len(prefix) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(prefix)
        if length > MAX_FRAME:
            raise WorkerError(f"a message of {length} bytes is announced; at most {MAX_FRAME} are taken")
        data = self._file.read(length)
        return data if len(data) == length else None
