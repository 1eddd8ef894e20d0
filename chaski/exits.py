"""Calls that the end of the interpreter must not cut off.

Python ends daemon threads where they stand. Up to 3.13 it unwinds their stacks for that, and libraries in
Rust or C++ that are called at that moment end the whole process with a signal.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import ContextDecorator
from typing import Protocol
from weakref import WeakSet

__all__ = ["uncut"]

# Seconds that the end of the interpreter waits for such calls.
_PATIENCE = 10.0


class _Ending(Protocol):
    def end(self, seconds: float) -> None: ...


class _Uncut(ContextDecorator):
    """A context, or decorator, of such calls: they end before the interpreter does; later ones never begin.

    The main thread may still begin them, as its own functions may run at exit.
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
        """Call `ending.end` when the interpreter ends, before such calls have to, which it may wait for."""
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
