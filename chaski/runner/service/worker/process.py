"""One process of a worker, from its start to its end, with the calls that it has to answer."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from time import monotonic, sleep
from typing import TypeAlias

from chaski.chat.events import Partial, Text
from chaski.env import without_secrets
from chaski.errors import ChaskiError, WorkerError
from chaski.ml.backend import ProgressCallback
from chaski.runner.service.messages import Info, ModelCall, ModelReply, ReplyCallback
from chaski.runner.service.worker.codec import Cancel, Failure, Load, LoadProgress, Received, WireMessage
from chaski.runner.service.worker.link import Link

__all__ = ["InFlight", "Process"]

_log = logging.getLogger(__name__)

_LOADING = 0  # the number of the first message; calls are numbered from 1
# Seconds that a process which has nothing to do any more may take to go.
_GRACE = 2.0
# A small model makes a thousand batches of text a second. Pieces that come within so many seconds wake the
# readers together, since waking them costs more than the pieces do.
_MOMENT = 0.003
_ADVICE: dict[int, str] = {
    signal.SIGKILL: "if the system ran out of memory, load with a smaller context or fewer in parallel",
    signal.SIGTERM: "somebody asked it to end",
}


class Process:
    """A process with a model in it. Its end is the end of all calls in flight, and of this object.

    again  takes calls that a loaded process had not read when it ended, so that they did not cause its end
    """

    def __init__(self, load: Load, folder: Path, progress: ProgressCallback, again: Again) -> None:
        self._name = load.model
        self._folder = folder
        self._progress = progress
        self._numbers = itertools.count(_LOADING + 1)
        self._again = again
        self._puts: dict[int, ReplyCallback] = {}
        self._unread: dict[int, tuple[ModelCall, InFlight]] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._popen: subprocess.Popen[bytes] | None = None
        self.info: Info | None = None
        self.error: ChaskiError | None = None
        self.ended_at = 0.0
        ours, theirs = socket.socketpair()
        self._link = Link(ours)
        self._sends: SimpleQueue[bool] = SimpleQueue()
        self._send(_LOADING, load)
        self._thread = threading.Thread(target=self._run, args=(theirs,), name="chaski-worker", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The process id, while it runs."""
        return self._popen.pid if self._popen is not None and self.error is None else None

    def start(self, call: ModelCall, put: ReplyCallback) -> InFlight:
        """Send a call; it waits in the worker until the model is loaded. Raises OptionError."""
        ticket = InFlight()
        self.take_over(call, put, ticket)
        return ticket

    def take_over(self, call: ModelCall, put: ReplyCallback, ticket: InFlight) -> None:
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
        else:
            self._send_call(number, call)

    def cancel(self, number: int) -> None:
        """Forget a call, if it has not been answered."""
        self._unread.pop(number, None)
        if self._puts.pop(number, None) is not None:
            self._send(number, Cancel())

    def close(self) -> None:
        """End the process, and wait until it is gone."""
        self._is_closed = True
        self._link.shutdown()
        self._thread.join()

    def _send(self, number: int, message: WireMessage) -> None:
        """Send without blocking: a thread waits if the socket is full."""
        self._link.send(number, message)
        if not self._link.flush_some():
            self._sends.put(True)

    def _send_all(self) -> None:
        while self._sends.get():
            self._link.flush()

    def _send_call(self, number: int, call: ModelCall) -> None:
        try:
            self._send(number, call)
        except ChaskiError:
            self._puts.pop(number, None)
            self._unread.pop(number, None)
            raise

    def _run(self, theirs: socket.socket) -> None:
        """Run the process to its end. However it ends, no call waits any more, and no process is left."""
        error: ChaskiError | None = None
        sender = threading.Thread(target=self._send_all, name="chaski-sender", daemon=True)
        sender.start()
        try:
            with theirs:
                self._popen = _spawn(theirs, self._folder)
            self._receive()
        except ChaskiError as found:
            error = found
        except Exception as found:
            _log.exception("worker of %s", self._name)
            error = WorkerError(f"the worker of {self._name} cannot be used: {found!r}")
        status = self._reap()
        can_go_on = error is None and self.info is not None and not self._is_closed
        self._end(error or WorkerError(self._obituary(status)), can_go_on)
        self._sends.put(False)
        sender.join()
        self._link.close()

    def _receive(self) -> None:
        while messages := self._link.receive():
            for number, message in messages:
                self._take(number, message)
            if any(isinstance(message, Text) for _, message in messages):
                sleep(_MOMENT)

    def _take(self, number: int, message: WireMessage) -> None:
        match message:
            case Received():
                self._unread.pop(number, None)
            case LoadProgress():
                self._progress(message.share)
            case Failure() if number == _LOADING:
                raise message.error
            case Info() if number == _LOADING:
                self.info = message
            case Failure():
                self._answer(number, message.error)
            case _:
                assert isinstance(message, ModelReply), "a worker sends replies only"
                self._answer(number, message)

    def _answer(self, number: int, reply: ModelReply | ChaskiError) -> None:
        """Pass a reply on, unless the call was cancelled in the meantime."""
        is_last = not isinstance(reply, Partial)
        put = self._puts.pop(number, None) if is_last else self._puts.get(number)
        if put is not None:
            put(reply)

    def _reap(self) -> int | None:
        """Wait until the process is gone, kill it after a while, and return its exit status."""
        self._link.shutdown()
        if self._popen is None:
            return None
        try:
            return self._popen.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait()

    def _end(self, error: ChaskiError, can_go_on: bool) -> None:
        """Answer all calls with the error, but hand those that were not read to another process."""
        with self._lock:
            self.error, self.ended_at = error, monotonic()
            puts, self._puts = self._puts, {}
            unread, self._unread = self._unread, {}
        for number, put in puts.items():
            if can_go_on and number in unread:
                self._again(put, *unread[number])
            else:
                put(_copy(error))

    def _obituary(self, status: int | None) -> str:
        who = f"the worker of {self._name}"
        if self._is_closed:
            return f"{who} was closed before it could answer"
        assert self._popen is not None, "without a process there was another error"
        assert status is not None
        who += f" (process {self._popen.pid})"
        lost = "what it was answering is lost, the next request starts a new one"
        if status >= 0:
            return f"{who} ended with exit status {status}; {lost}; its log on the standard error may say why"
        advice = _ADVICE.get(-status, "if that happens again, please report it with the log")
        return f"{who} was ended by signal {-status} ({signal.strsignal(-status)}); {lost}; {advice}"


class InFlight:
    """A call on its way: to which process, and with which number there."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._number = 0
        self.is_cancelled = False

    def set(self, process: Process, number: int) -> None:
        """Note the process that has it now."""
        self._process, self._number = process, number

    def cancel(self) -> None:
        """Drop the call: its replies are not awaited any more."""
        self.is_cancelled = True
        if self._process is not None:
            self._process.cancel(self._number)


Again: TypeAlias = Callable[[ReplyCallback, ModelCall, InFlight], None]


def _spawn(end: socket.socket, folder: Path) -> subprocess.Popen[bytes]:
    """Start the process with one end of a socket. It looks for modules where this process does."""
    places = os.pathsep.join(map(os.path.abspath, sys.path))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "chaski.runner.service.worker", str(end.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=2,  # the standard output belongs to the parent's own data
        pass_fds=[end.fileno()],
        cwd=folder,
        env=without_secrets(os.environ) | {"PYTHONPATH": places},
        # Ctrl-C on a terminal goes to a whole group: what it means is for the parent to decide.
        process_group=0,
    )


def _copy(error: ChaskiError) -> ChaskiError:
    """One for each reader: raising an error changes it."""
    return type(error)(str(error))
