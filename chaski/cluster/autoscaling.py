"""How many replicas a model should have: as many as its answers need, neither hastily nor forgetfully."""

from __future__ import annotations

import math

from msgspec import Struct

__all__ = ["Bounds", "Scaler"]

# Answers are averaged over about so many seconds: a moment without them does not count.
_MEMORY = 3.0
# Seconds for which more, or fewer, replicas must have been wanted.
_UP, _DOWN = 3.0, 60.0
# Where so great a part of the places is enough, there may be one replica less.
_FULL = 0.7


class Bounds(Struct, frozen=True):
    """The least and the greatest number of replicas."""

    least: int = 1
    most: int = 1


class Scaler:
    """Follows the number of answers, and says how many replicas there should be."""

    def __init__(self, bounds: Bounds, now: float) -> None:
        self._bounds = bounds
        self.number = bounds.least
        self._answers = 0.0
        self._seen_at = self._enough_since = self._excess_since = now

    def wanted(self, answers: int, places: int, now: float) -> int:
        """Return the number, where each replica has so many places. `now` is in seconds."""
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
