"""Calls that the interpreter's exit must not interrupt.

At exit, Python stops daemon threads at any point. Up to 3.13 it unwinds their stacks, and Rust or C++
libraries that are running at that moment abort the whole process with a signal.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import ContextDecorator
from typing import Protocol
from weakref import WeakSet

__all__ = ["uncut"]

# Seconds for which the interpreter's exit waits for such calls.
_PATIENCE = 10.0


class _Ending(Protocol):
    def end(self, seconds: float) -> None: ...


class _Uncut(ContextDecorator):
    """A context manager or decorator for such calls. The exit waits for running calls and blocks new ones.

    The main thread may still start such calls, because its exit functions may need them.
    """

    def __init__(self) -> None:
        self._first: WeakSet[_Ending] = WeakSet()
        self._reset()
        atexit.register(self._close)
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._num_inside = 0
        self._is_closed = False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(self._may_enter)
            self._num_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._num_inside -= 1
            self._changed.notify_all()

    def end_first(self, ending: _Ending) -> None:
        """Call `ending.end` at exit, before the wait for such calls, so that it can end them."""
        self._first.add(ending)

    def _may_enter(self) -> bool:
        return not self._is_closed or threading.current_thread() is threading.main_thread()

    def _close(self) -> None:
        for ending in list(self._first):
            ending.end(_PATIENCE)
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._num_inside, _PATIENCE)


uncut = _Uncut()
