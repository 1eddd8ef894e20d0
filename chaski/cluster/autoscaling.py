"""The number of replicas that a model should have, derived from its recent load."""

from __future__ import annotations

import math

from msgspec import Struct

__all__ = ["Bounds", "Scaler"]

# The number of answers is averaged over about this many seconds, so that short pauses have no effect.
_MEMORY = 3.0
# Seconds for which more, or fewer, replicas must be needed before the number changes.
_UP, _DOWN = 3.0, 60.0
# The number of replicas may shrink if this share of the remaining places is enough.
_FULL = 0.7


class Bounds(Struct, frozen=True):
    """The minimum and maximum number of replicas."""

    least: int = 1
    most: int = 1


class Scaler:
    """Tracks the number of running answers and computes the required number of replicas."""

    def __init__(self, bounds: Bounds, now: float) -> None:
        self._bounds = bounds
        self.number = bounds.least
        self._answers = 0.0
        self._seen_at = self._enough_since = self._excess_since = now

    def wanted(self, answers: int, places: int, now: float) -> int:
        """Return the required number of replicas.

        places: answers that one replica computes at a time.
        now: time in seconds."""
        self._answers += (answers - self._answers) * min(1.0, (now - self._seen_at) / _MEMORY)
        self._seen_at = now
        if self._answers <= places * self.number:
            self._enough_since = now
        if self._answers > places * (self.number - 1) * _FULL:
            self._excess_since = now
        if now - self._enough_since >= _UP:
            self.number = min(math.ceil(self._answers / places), self._bounds.most)
            self._enough_since = now
        elif now - self._excess_since >= _DOWN:
            self.number = max(self.number - 1, self._bounds.least)
            self._excess_since = now
        return self.number
