"""Guards for objects that do not work after a fork: threads are lost, and locks stay as they were."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from weakref import WeakKeyDictionary

from chaski.errors import ForkError

__all__ = ["ForkGuard", "keep_in_forks"]


class ForkGuard:
    """Detects whether this process was forked after an object was created."""

    def __init__(self, what: str) -> None:
        """`what` begins the message of the error, as in "the model"."""
        self._what = what
        self._forks = _watched()
        self._num_forks = self._forks.count

    @property
    def is_forked(self) -> bool:
        """True if the object belongs to another process."""
        return self._num_forks != self._forks.count

    def check(self) -> None:
        """Raise ForkError in a fork."""
        if self._num_forks != self._forks.count:
            raise ForkError(
                f"{self._what} was loaded before this process was forked, and its threads are not here: load "
                'it in this process, or start the process by "spawn" (multiprocessing.set_start_method)'
            )


class _Forks:
    """Counts forks since the first use, and keeps objects that a fork must not destroy."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: WeakKeyDictionary[object, object] = WeakKeyDictionary()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.count += 1
        for native in list(self.kept.values()):
            # This reference is never released, not even at exit.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))


@cache
def _watched() -> _Forks:
    return _Forks()


def keep_in_forks(owner: object, native: object) -> None:
    """Prevent a fork from destroying `native`, held by `owner`: this would wait for lost threads."""
    _watched().kept[owner] = native
