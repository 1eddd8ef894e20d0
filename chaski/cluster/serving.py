"""The replica's end of a connection: reads calls, lets a channel answer them and sends the replies."""

from __future__ import annotations

import logging
import socket
import threading
from functools import partial

from chaski.chat.events import Partial
from chaski.errors import ChaskiError
from chaski.runner.channels.messages import CallHandle, Channel, ModelCall, ReplyOrError
from chaski.runner.channels.worker.codec import Cancel, Failure, Received, decode, encode
from chaski.runner.channels.worker.link import Link

__all__ = ["Connection"]

_log = logging.getLogger(__name__)


class Connection:
    """Answers calls from a socket until it closes, then cancels the remaining ones."""

    def __init__(self, end: socket.socket, channel: Channel) -> None:
        self._link = Link(end)
        self._channel = channel
        self._has_replies = threading.Event()
        self._is_over = False
        # Unanswered calls. None until the channel has returned a handle.
        self._open: dict[int, CallHandle | None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of calls that are being answered."""
        return len(self._open)

    def serve(self) -> None:
        """Serve until the connection ends. Runs in a dedicated thread."""
        sender = threading.Thread(target=self._send, name="chaski-sender", daemon=True)
        sender.start()
        try:
            while messages := self._link.receive():
                for number, message in map(decode, messages):
                    if isinstance(message, Cancel):
                        self._cancel(number)
                    elif isinstance(message, ModelCall):
                        self._link.send(encode(number, Received()))
                        self._start(number, message)
                self._has_replies.set()
        except ChaskiError as error:
            _log.warning("a connection was closed: %s", error)
        finally:
            for number in list(self._open):
                self._cancel(number)
            self._is_over = True
            self._has_replies.set()
            sender.join()
            self._link.close()

    def _start(self, number: int, call: ModelCall) -> None:
        put = partial(self._reply, number)
        self._open[number] = None
        try:
            handle = self._channel.start(call, put)
        except ChaskiError as error:
            put(error)
            return
        with self._lock:
            if number in self._open:
                self._open[number] = handle

    def _cancel(self, number: int) -> None:
        with self._lock:
            handle = self._open.pop(number, None)
        if handle is not None:
            handle.cancel()

    def _reply(self, number: int, reply: ReplyOrError) -> None:
        if not isinstance(reply, Partial):
            with self._lock:
                self._open.pop(number, None)
        message = Failure.of(reply) if isinstance(reply, Exception) else reply
        self._link.send(encode(number, message))
        self._has_replies.set()

    def _send(self) -> None:
        """Send all replies queued since the last call at once."""
        while not self._is_over:
            self._has_replies.wait()
            self._has_replies.clear()
            self._link.flush()
