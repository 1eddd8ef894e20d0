"""One process of a worker, from start to end, with its open calls."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

from chaski.chat.events import Text
from chaski.chat.several import ProgressOption, progress_of
from chaski.env import child_environment
from chaski.errors import ChaskiError, WorkerError, closed
from chaski.runner.channels.messages import Info
from chaski.runner.channels.worker.codec import Failure, Load, LoadProgress, WireMessage, decode, encode
from chaski.runner.channels.worker.link import Link
from chaski.runner.channels.worker.open_calls import Again, OpenCalls
from chaski.standard_streams import open_missing

__all__ = ["Process"]

_log = logging.getLogger(__name__)

_LOADING = 0  # the number of the first message
# Seconds that an idle process may take to exit.
_GRACE = 2.0
# A small model produces a thousand batches of text per second. Waking the readers costs more than handling
# the pieces, so pieces that arrive within this many seconds wake them together.
_MOMENT = 0.003
_ADVICE: dict[int, str] = {
    signal.SIGKILL: "if the system ran out of memory, load with a smaller context or fewer in parallel",
    signal.SIGTERM: "another process asked it to end",
}


class Process:
    """A process with a loaded model. When the process ends, all calls in progress end, and the object cannot
    be used any more.

    `calls` sends calls; they wait in the worker until the model is loaded.

    again  takes calls that a loaded process had not read when it ended, so that they did not cause its end
    """

    def __init__(
        self, load: Load, folder: Path, environment: Mapping[str, str], progress: ProgressOption, again: Again
    ) -> None:
        self._name = load.model
        self._folder = folder
        self._environment = environment
        self._bar = ExitStack()
        self._progress = self._bar.enter_context(progress_of(progress, f"loading {load.model}"))
        self._again = again
        self._is_closed = False
        self._popen: subprocess.Popen[bytes] | None = None
        self.info: Info | None = None
        self.ended_at = 0.0
        open_missing()  # otherwise one of these descriptors could become the process's standard stream
        ours, theirs = socket.socketpair()
        self._link = Link(ours)
        self.calls = OpenCalls(self._link)
        self.calls.send(encode(_LOADING, load))
        self._thread = threading.Thread(target=self._run, args=(theirs,), name="chaski-worker", daemon=True)
        self._thread.start()

    @property
    def error(self) -> ChaskiError | None:
        """The error that the process ended with; None while it runs."""
        return self.calls.error

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._popen.pid if self._popen is not None and self.error is None else None

    def close(self) -> None:
        """End the process, and wait until it has exited."""
        self._is_closed = True
        self._link.shutdown()
        self._thread.join()

    def _run(self, theirs: socket.socket) -> None:
        """Run the process until it ends. However it ends, no call and no process is left."""
        error: ChaskiError | None = None
        try:
            with theirs:
                self._popen = _spawn(theirs, self._folder, self._environment)
            self._receive()
        except ChaskiError as found:
            error = found
        except Exception as found:
            _log.exception("worker of %s", self._name)
            error = WorkerError(f"the worker of {self._name} cannot be used: {found!r}")
        self._bar.close()
        status = self._reap()
        can_go_on = error is None and self.info is not None and not self._is_closed
        self.ended_at = monotonic()
        self.calls.end(error or self._obituary(status), self._again if can_go_on else None)
        self._link.close()

    def _receive(self) -> None:
        while received := self._link.receive():
            messages = list(map(decode, received))
            for number, message in messages:
                self._take(number, message)
            if any(isinstance(message, Text) for _, message in messages):
                sleep(_MOMENT)

    def _take(self, number: int, message: WireMessage) -> None:
        match message:
            case LoadProgress():
                self._progress(message.share)
            case Failure() if number == _LOADING:
                raise message.error
            case Info() if number == _LOADING:
                self._bar.close()
                self.info = message
            case _:
                self.calls.take(number, message)

    def _reap(self) -> int | None:
        """Wait until the process has exited, kill it after a while, and return its exit status."""
        self._link.shutdown()
        if self._popen is None:
            return None
        try:
            return self._popen.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait()

    def _obituary(self, status: int | None) -> WorkerError:
        """Return the error of the calls that the process left open."""
        if self._is_closed:
            return closed()
        assert self._popen is not None, "without a process there was another error"
        assert status is not None
        who = f"the worker of {self._name} (process {self._popen.pid})"
        lost = "its open answers are lost, and the next request starts a new process"
        if status >= 0:
            return WorkerError(
                f"{who} ended with exit status {status}; {lost}; its log on the standard error may show why"
            )
        advice = _ADVICE.get(-status, "if that happens again, please report it with the log")
        signal_name = f"signal {-status} ({signal.strsignal(-status)})"
        return WorkerError(f"{who} was ended by {signal_name}; {lost}; {advice}")


def _spawn(end: socket.socket, folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process and give it one end of a socket."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "chaski.runner.channels.worker", str(end.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=2,  # the standard output is reserved for the parent's data
        pass_fds=[end.fileno()],
        cwd=folder,
        env={**child_environment(), **environment},
        # A terminal sends Ctrl-C to the whole group. Only the parent acts on it.
        process_group=0,
    )
