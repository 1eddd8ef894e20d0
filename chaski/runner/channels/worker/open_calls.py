"""The calls that were sent over a link and are not answered yet."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from chaski.chat.events import Partial
from chaski.errors import ChaskiError
from chaski.runner.channels.messages import ModelReply, ReplyCallback
from chaski.runner.channels.worker.codec import Cancel, Failure, Received, WireMessage, encode, numbered
from chaski.runner.channels.worker.link import Link

__all__ = ["Again", "InFlight", "OpenCalls"]


class InFlight:
    """A call in progress: its link, and its number there."""

    def __init__(self) -> None:
        self._calls: OpenCalls | None = None
        self._number = 0
        self.is_cancelled = False

    def set(self, calls: OpenCalls, number: int) -> None:
        """Store the link that currently carries the call."""
        self._calls, self._number = calls, number

    def cancel(self) -> None:
        """Drop the call: no more replies are expected."""
        self.is_cancelled = True
        if self._calls is not None:
            self._calls.cancel(self._number)


Again: TypeAlias = Callable[[ReplyCallback, bytes, InFlight], None]
"""Takes an encoded call that the other end had not read, so that it did not cause the end of the link."""


class OpenCalls:
    """Sends calls, and passes replies on to their callers. Safe to use from several threads.

    Calls are numbered from 1. When the link ends, all calls end, and the object cannot be used any more.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._puts: dict[int, ReplyCallback] = {}
        self._unread: dict[int, tuple[bytes, InFlight]] = {}
        self._lock = threading.Lock()
        self.error: ChaskiError | None = None
        self._sends: SimpleQueue[bool] = SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, name="chaski-sender", daemon=True)
        self._sender.start()

    def __len__(self) -> int:
        return len(self._puts)

    def start(self, call: bytes, put: ReplyCallback) -> InFlight:
        """Send a call that `encode_call` has encoded. Raises OptionError for one that is too large."""
        ticket = InFlight()
        self.take_over(call, put, ticket)
        return ticket

    def take_over(self, call: bytes, put: ReplyCallback, ticket: InFlight) -> None:
        """Send a call that has a ticket already. Raises OptionError."""
        number = next(self._numbers)
        with self._lock:
            error = self.error
            if error is None:
                self._puts[number] = put
                self._unread[number] = call, ticket
                ticket.set(self, number)
        if error is not None:
            put(_copy(error))
            return
        try:
            self.send(numbered(number, call))
        except ChaskiError:
            self._puts.pop(number, None)
            self._unread.pop(number, None)
            raise

    def cancel(self, number: int) -> None:
        """Forget a call unless it has been answered."""
        self._unread.pop(number, None)
        if self._puts.pop(number, None) is not None:
            self.send(encode(number, Cancel()))

    def send(self, message: bytes) -> None:
        """Send without blocking: a thread waits if the socket is full. Raises OptionError."""
        self._link.send(message)
        if not self._link.flush_some():
            self._sends.put(True)

    def take(self, number: int, message: WireMessage) -> None:
        """Handle a message from the other end about a call."""
        if isinstance(message, Received):
            self._unread.pop(number, None)
        elif isinstance(message, Failure):
            self._answer(number, message.error)
        else:
            assert isinstance(message, ModelReply), "the other end may only send replies"
            self._answer(number, message)

    def end(self, error: ChaskiError, again: Again | None) -> None:
        """End all calls with the error, but pass calls that were not read to `again`."""
        with self._lock:
            self.error = error
            puts, self._puts = self._puts, {}
            unread, self._unread = self._unread, {}
        for number, put in puts.items():
            if again is not None and number in unread:
                again(put, *unread[number])
            else:
                put(_copy(error))
        self._sends.put(False)
        self._sender.join()

    def _send_all(self) -> None:
        while self._sends.get():
            self._link.flush()

    def _answer(self, number: int, reply: ModelReply | ChaskiError) -> None:
        """Pass a reply on unless the call was cancelled in the meantime."""
        is_last = not isinstance(reply, Partial)
        put = self._puts.pop(number, None) if is_last else self._puts.get(number)
        if put is not None:
            put(reply)


def _copy(error: ChaskiError) -> ChaskiError:
    """Return a copy for one reader, since raising an error changes it."""
    return type(error)(str(error))
