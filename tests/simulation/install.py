"""Replaces threads, locks, time and random numbers of Python's library by simulated ones.

Import this module first, in a process of its own: modules that are imported later see no others.
"""

from __future__ import annotations

import _thread
import atexit
import fcntl
import importlib
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.simulation.scheduler import SCHEDULER, Thread

__all__ = ["Lock", "RLock"]

_real_ident = threading.get_ident
_real_flock = fcntl.flock


class Lock:
    """The lock of simulated threads, as `threading.Lock`. Any waiting thread may get it next.

    A killed thread still takes free locks while its functions end, and releases what it has lost.
    """

    def __init__(self) -> None:
        self._is_locked = False
        self._waiting: list[Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not SCHEDULER.process.is_dead:
            SCHEDULER.pause()
        if self._is_locked and not (blocking and self._wait(timeout)):
            return False
        self._is_locked = True
        return True

    def _wait(self, timeout: float) -> bool:
        """Wait until the lock is free; return False if the time is over before."""
        end = None if timeout < 0 else SCHEDULER.now + timeout
        while self._is_locked:
            left = None if end is None else end - SCHEDULER.now
            if left is not None and left <= 0:
                return False
            thread = SCHEDULER.current
            if thread is None:
                SCHEDULER.wait(left)
                continue
            self._waiting.append(thread)
            try:
                SCHEDULER.wait(left)
            finally:
                if thread in self._waiting:
                    self._waiting.remove(thread)
        return True

    def release(self) -> None:
        is_dead = SCHEDULER.process.is_dead
        if not self._is_locked and not is_dead:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            SCHEDULER.wake(thread)
        if not is_dead:
            SCHEDULER.pause()

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    _at_fork_reinit = __init__


class RLock:
    """The lock that its owner may take again, as `threading.RLock`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = _ident()
        if self._owner != me:
            if not self._lock.acquire(blocking, timeout):
                return False
            self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        if self._owner != _ident():
            if SCHEDULER.process.is_dead:
                return
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner == _ident()

    def _release_save(self) -> tuple[int, int | None]:
        state = self._count, self._owner
        self._count, self._owner = 0, None
        self._lock.release()
        return state

    def _acquire_restore(self, state: tuple[int, int | None]) -> None:
        self._lock.acquire()
        self._count, self._owner = state

    _at_fork_reinit = __init__


def _ident() -> int:
    return _real_ident() if SCHEDULER.current is None else SCHEDULER.current.ident


def _start(
    function: Callable[..., object], arguments: tuple[Any, ...], options: dict[str, Any] | None = None
) -> int:
    owner = getattr(function, "__self__", None)
    name = owner.name if isinstance(owner, threading.Thread) else function.__name__
    return SCHEDULER.spawn(function, arguments, options, name=name).ident


def _set_sentinel() -> Lock:
    assert SCHEDULER.current is not None, "only a thread has a sentinel"
    SCHEDULER.current.sentinel = Lock()
    lock: Lock = SCHEDULER.current.sentinel
    return lock


def _urandom(count: int) -> bytes:
    return SCHEDULER.entropy.randbytes(count)


def _flock(file: Any, operation: int) -> None:
    """Lock a file; other threads run while it waits."""
    while True:
        try:
            _real_flock(file, operation | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if operation & fcntl.LOCK_NB:
                raise
            SCHEDULER.wait(0.001)


def _note_failure(failure: threading.ExceptHookArgs) -> None:
    """Keep the error that ended a thread, unless it was killed."""
    if not issubclass(failure.exc_type, SystemExit):
        name = "a thread" if failure.thread is None else failure.thread.name
        SCHEDULER.errors.append(f"{name} ended with {failure.exc_type.__name__}: {failure.exc_value}")


def _hash(thread: threading.Thread) -> int:
    """Return the same number in every replay, for the order of sets."""
    found: int = thread.__dict__.setdefault("_number", next(SCHEDULER.numbers))
    return found


def _install() -> None:
    library: Any = threading
    library.Lock = library._allocate_lock = Lock
    library.RLock = library._RLock = RLock
    library._start_new_thread = _thread.start_new_thread = _start
    library._set_sentinel = _set_sentinel
    library.Thread.__hash__ = _hash
    library.get_ident = _thread.get_ident = _ident
    library = queue
    library.SimpleQueue = library._PySimpleQueue
    for name in ("monotonic", "perf_counter", "thread_time", "process_time"):
        setattr(time, name, lambda: SCHEDULER.now)
        setattr(time, f"{name}_ns", lambda: int(SCHEDULER.now * 1e9))
    time.time = lambda: SCHEDULER.wall
    time.time_ns = lambda: int(SCHEDULER.wall * 1e9)
    time.sleep = SCHEDULER.sleep
    threading.excepthook = _note_failure
    logging = importlib.import_module("logging")  # it makes a lock
    logging.getLogger("concurrent.futures").disabled = True  # it reports each killed thread
    os.urandom = _urandom
    library = random
    library._urandom = _urandom
    fcntl.flock = _flock
    # Objects of a world end with it, and must not live until the end of the process.
    library = atexit
    library.register = lambda function, *arguments, **options: function


_install()
