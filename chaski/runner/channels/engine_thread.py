"""A thread that computes for callers that must not block, and passes on the events of their sequences.

The engine has no thread, so a caller that can block computes without a hand-over. Event loops
and workers cannot block; for them each model has one such thread.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

from chaski.chat.events import Partial
from chaski.errors import closed
from chaski.forks import ForkGuard
from chaski.runner.channels.base_channel import ActiveCall
from chaski.runner.channels.messages import ReplyCallback
from chaski.runner.engine.engine import Engine
from chaski.runner.engine.sequence import Sequence

__all__ = ["EngineThread"]

_log = logging.getLogger(__name__)


class EngineThread:
    """Follows sequences to their end. Only this thread cancels sequences, so each of them comes to an end.

    Before each batch it checks for cancelled calls and frees their slots. `flush` is called once after all
    replies of a batch have been passed on.
    """

    def __init__(self, engine: Engine, flush: Callable[[], None]) -> None:
        self._engine = engine
        self._flush = flush
        self._fork_guard = ForkGuard("the model")
        self._changed = threading.Condition()
        self._followed: list[tuple[Sequence, ActiveCall, ReplyCallback]] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="chaski-driver", daemon=True)
        self._thread.start()
        # A thread that runs native code while the interpreter shuts down would crash the process.
        atexit.register(self.close)

    def follow(self, sequence: Sequence, task: ActiveCall, put: ReplyCallback) -> None:
        """Compute a new sequence of a task; `put` receives its events, up to the last one or an error."""
        self._engine.submit(sequence)
        with self._changed:
            self._followed.append((sequence, task, put))
            self._changed.notify()
        if self._is_closed:
            self._fail(closed())

    def close(self) -> None:
        """End the thread after its current batch; unfinished sequences end with ClosedError.

        A forked process lacks the thread, so there is nothing to end.
        """
        atexit.unregister(self.close)
        if self._fork_guard.is_forked:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        self._fail(closed())

    def _run(self) -> None:
        while self._has_work():
            try:
                self._engine.wait_until(self._has_news)
            except Exception as error:
                self._fail(error)
            else:
                self._hand_on()

    def _has_work(self) -> bool:
        """Wait until there is a sequence to follow; return False if the thread should end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._followed)
            return not self._is_closed

    def _has_news(self) -> bool:
        return self._is_closed or any(
            sequence.events or task.is_cancelled for sequence, task, _ in self._followed
        )

    def _hand_on(self) -> None:
        with self._changed:
            self._followed = [followed for followed in self._followed if self._pass_on(*followed)]
        self._flush()

    def _pass_on(self, sequence: Sequence, task: ActiveCall, put: ReplyCallback) -> bool:
        """Pass on the events of a sequence; return whether more will follow. A callback that raises counts as
        a reader that has left.
        """
        if task.is_cancelled:
            sequence.cancel()
            return False
        try:
            return _put_all(sequence, put)
        except Exception:
            _log.exception("an answer cannot be handed on")
            sequence.cancel()
            return False

    def _fail(self, error: Exception) -> None:
        """End all sequences with an error."""
        with self._changed:
            failed, self._followed = self._followed, []
        for sequence, _, put in failed:
            sequence.cancel()
            put(error)
        self._flush()


def _put_all(sequence: Sequence, put: ReplyCallback) -> bool:
    """Pass on the events of a sequence; return whether more will follow."""
    while sequence.events:
        event = sequence.events.popleft()
        put(event)
        if not isinstance(event, Partial):
            return False
    return True
