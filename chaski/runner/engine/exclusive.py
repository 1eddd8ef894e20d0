"""Steps of an engine: only one thread runs a step at a time, and Ctrl-C never interrupts one."""

from __future__ import annotations

import sys
import threading

# The functions of the module `signal` convert numbers to enumerations, which takes longer than everything
# else here.
from _signal import getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable
from contextlib import suppress
from signal import SIGINT, default_int_handler
from types import FrameType
from typing import Any

from chaski.errors import ChaskiError
from chaski.exits import uncut
from chaski.forks import ForkGuard

__all__ = ["Exclusive", "uninterrupted"]


class Exclusive:
    """Runs functions for one thread at a time. No thread runs twice in a row while another one waits.

    The waiting thread holds the gate, which every thread must pass. It is much faster than a condition
    variable: the code runs between any two tokens, when it is not in the processor's caches.
    """

    def __init__(self) -> None:
        self._gate = threading.RLock()
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._fork_guard = ForkGuard("the model")
        uncut.end_first(self)

    def run(self, work: Callable[..., None], *arguments: object) -> None:
        """Call `work` with `arguments`; a Ctrl-C takes effect after it has returned.

        Raises ChaskiError if the same thread is already in a call, for example in a signal handler.
        """
        if self._owner == threading.get_ident():
            raise ChaskiError(
                "this thread is already computing with the model, and cannot start another computation "
                "inside it; use another thread"
            )
        uninterrupted(self._run, work, arguments)

    def end(self, seconds: float) -> None:
        """Let no other thread run anything from now on, after what one of them runs now; wait for that."""
        if not self._fork_guard.is_forked:
            for lock in (self._gate, self._lock):
                lock.acquire(timeout=seconds)

    def _run(self, work: Callable[..., None], arguments: Iterable[object]) -> None:
        try:
            self._gate.acquire()
            self._lock.acquire()
            self._gate.release()
            self._owner = threading.get_ident()
            work(*arguments)
            self._owner = None
            self._lock.release()
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        """Release the locks of this thread: an exception may come between any two lines above."""
        if self._owner == threading.get_ident():
            self._owner = None
        for lock in (self._lock, self._gate):
            with suppress(RuntimeError):  # it belongs to another thread, or to none
                lock.release()


class _Deferral:
    """The handler of SIGINT while the main thread must not be interrupted."""

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] = default_int_handler
        self._is_active = False
        self._is_pending = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_active:
            self._is_pending = True
        else:
            self._handler(number, frame)

    def run(self, work: Callable[..., None], *arguments: object) -> None:
        """Call `work`, and then the handler of the signal, if that has come."""
        handler = getsignal(SIGINT)
        is_nested = handler is self and self._is_active
        if is_nested or not callable(handler):  # where it is not, the signal is ignored, or kills
            work(*arguments)
            return
        if handler is not self:
            self._handler = handler
        self._is_pending = False
        try:
            signal(SIGINT, self)
            self._is_active = True
            work(*arguments)
        finally:
            self._end()

    def _end(self) -> None:
        try:
            signal(SIGINT, self._handler)
        finally:
            self._is_active = False
        if self._is_pending:
            self._is_pending = False
            self._handler(SIGINT, sys._getframe())


_deferral = _Deferral()


def uninterrupted(work: Callable[..., None], *arguments: object) -> None:
    """Call `work` with `arguments`; a Ctrl-C meanwhile takes effect when it has ended.

    Other signals are left alone. Python runs the handlers of signals in the main thread, so work in other
    threads is not interrupted anyway.
    """
    if threading.get_ident() == threading.main_thread().ident:
        _deferral.run(work, *arguments)
    else:
        work(*arguments)
