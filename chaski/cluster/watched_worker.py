"""`WatchedWorker`: the worker of a replica. A hung process is killed, and the model is loaded again.

Meanwhile the replica itself answers questions about its sequences, so callers know that it lives: they wait
as long as the model loads.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from msgspec import Struct

from chaski.cluster.replicas import Ended
from chaski.errors import ChaskiError, WorkerError
from chaski.runner.channels.messages import CallHandle, LookLive, ModelCall, ReplyCallback, ReplyOrError
from chaski.runner.channels.worker.client import Worker
from chaski.runner.engine.live import LiveSequences, TokenTotals

__all__ = ["NOTHING", "WatchedWorker", "WorkerPatience"]

_log = logging.getLogger(__name__)

_MOST_FAILURES = 5

NOTHING = LiveSequences(seconds=0.0, totals=TokenTotals(), num_sequences=0, sequences=())
"""The figures of a worker that computes nothing."""


class WorkerPatience(Struct, frozen=True):
    """Seconds after which a worker counts as hung.

    silence     without a message, and
    standstill  without a token of its answers; both are less than the callers' (`Patience`), which otherwise
                would give the replica up
    loading     without progress in loading
    """

    silence: float = 8.0
    standstill: float = 110.0
    loading: float = 300.0


class WatchedWorker:
    """A channel to a worker that is loaded again if it hangs or dies.

    open   starts the worker; takes the function that is called with the loaded share
    share  called with the share when the model is loaded again, and with 1 at the end
    lost   called with the reason if no process can be started, for example because several in a row have died
           while they loaded; no call can be answered then
    """

    def __init__(
        self,
        open: Callable[[Callable[[float], None]], Worker],
        share: Callable[[float], None],
        patience: WorkerPatience | None = None,
        lost: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._share = share
        self._lost = lost
        self._patience = WorkerPatience() if patience is None else patience
        self._problem: ChaskiError | None = None
        self._num_failures = 0
        self._is_loading = True
        self._asked_at: float | None = None
        self._seen: TokenTotals | None = None
        self._moved_at = monotonic()
        self._worker = open(self._note_share)
        self._worker.info()
        self._is_loading, self._moved_at = False, monotonic()

    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Let the worker answer a call, see `Channel`."""
        if self._is_loading and isinstance(call, LookLive):
            put(NOTHING)
            return Ended()
        return self._start(call, put)

    def check_open(self) -> None:
        """Raise ClosedError if the worker is closed."""
        self._worker.check_open()

    def check_health(self) -> None:
        """Raise the error if the model cannot be loaded again. Does not block."""
        if self._problem is not None:
            raise self._problem

    def watch(self) -> None:
        """Ask for a sign of life, or kill the process if it hangs. Call this about once a second."""
        now, patience = monotonic(), self._patience
        if self._is_loading and now - self._moved_at > patience.loading:
            self._kill(f"it has made no progress in loading for {patience.loading:.0f} s")
        elif not self._is_loading and now - self._moved_at > patience.standstill:
            self._kill(f"it has computed nothing for {patience.standstill:.0f} s")
        elif not self._is_loading and self._asked_at is not None and now - self._asked_at > patience.silence:
            self._kill(f"it has said nothing for {patience.silence:.0f} s")
        if self._asked_at is None:
            self._asked_at = now
            try:
                # This also starts a process where none runs.
                self._start(LookLive(), self._take_sign)
            except ChaskiError as error:
                self._take_sign(error)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def _start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        try:
            return self._worker.start(call, put)
        except WorkerError as error:
            self._lost(str(error))
            raise

    def _kill(self, why: str) -> None:
        """Kill the process. Its answers fail; the call for a sign of life starts another process."""
        pid = self._worker.pid
        _log.warning("the worker process %s is killed: %s", pid, why)
        self._is_loading, self._moved_at = True, monotonic()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _note_share(self, share: float) -> None:
        self._is_loading, self._moved_at = True, monotonic()
        self._share(min(share, 0.99))

    def _take_sign(self, reply: ReplyOrError) -> None:
        self._asked_at = None
        if isinstance(reply, ChaskiError):
            self._num_failures += 1
            # A process that died is started again, until the worker itself pauses after some attempts.
            if not isinstance(reply, WorkerError) or self._num_failures >= _MOST_FAILURES:
                self._problem = reply
        elif isinstance(reply, LiveSequences):
            self._problem, self._num_failures = None, 0
            if self._is_loading:
                self._is_loading = False
                self._share(1.0)
            if reply.totals != self._seen or not reply.num_sequences:
                self._seen, self._moved_at = reply.totals, monotonic()
