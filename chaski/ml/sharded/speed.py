"""`BestSpeed`: the speed of a member, measured again for each model that it joins."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["BestSpeed"]

_LAST = 8


class BestSpeed:
    """The best of the last `_LAST` measurements, since other work on the machine only makes them worse.

    Calls measure one after the other, so that heads which connect together do not disturb each other.
    """

    def __init__(self, measure: Callable[[], float]) -> None:
        self._measure = measure
        self._lock = threading.Lock()
        self._found: deque[float] = deque(maxlen=_LAST)

    def __call__(self) -> float:
        """Measure once more, and return the best speed in bytes per second."""
        with self._lock:
            self._found.append(self._measure())
            return max(self._found)
