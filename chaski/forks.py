"""A guard of what a forked process cannot use: threads do not survive a fork, and locks stay as they were."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from weakref import WeakKeyDictionary

from chaski.errors import ForkError

__all__ = ["ForkGuard", "keep_in_forks"]


class ForkGuard:
    """Tells whether this process is a fork of the one that an object was made in."""

    def __init__(self, what: str) -> None:
        """`what` begins the message of the error, as in "the model"."""
        self._what = what
        self._forks = _watched()
        self._num_forks = self._forks.count

    @property
    def is_forked(self) -> bool:
        """True if the object belongs to another process, whose threads and locks are not here."""
        return self._num_forks != self._forks.count

    def check(self) -> None:
        """Raise ForkError in a fork."""
        if self._num_forks != self._forks.count:
            raise ForkError(
                f"{self._what} was loaded before this process was forked, and its threads are not here: load "
                'it in this process, or start the process by "spawn" (multiprocessing.set_start_method)'
            )


class _Forks:
    """Counts the forks since the first use, and holds what a fork must not destroy."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: WeakKeyDictionary[object, object] = WeakKeyDictionary()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.count += 1
        for native in list(self.kept.values()):
            # One reference that nobody gives back, even when the interpreter ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))


@cache
def _watched() -> _Forks:
    return _Forks()


def keep_in_forks(owner: object, native: object) -> None:
    """Keep `native` from being destroyed in a fork, where that would wait for threads; `owner` holds it."""
    _watched().kept[owner] = native
