"""Rates as they were measured so far."""

from __future__ import annotations

import math

__all__ = ["Speed"]


class Speed:
    """A rate in units a second; the latest measurements count most. `rate` is None before the first one."""

    def __init__(self, guess: float | None = None) -> None:
        self.rate = guess
        self._is_recalled = False

    @classmethod
    def recalled(cls, rate: float | None) -> Speed:
        """Return a rate that was measured elsewhere, and that the first measurement replaces."""
        speed = cls(rate)
        speed._is_recalled = True
        return speed

    def measure(self, count: float, seconds: float) -> None:
        """Record the time that `count` units took."""
        if count > 0 and seconds > 0:
            rate = count / seconds
            is_first = self.rate is None or self._is_recalled
            self.rate = rate if is_first else 0.7 * (self.rate or 0.0) + 0.3 * rate
            self._is_recalled = False

    def seconds(self, count: float) -> float:
        """Return how long that many units would take; infinity if nothing is known."""
        return math.inf if self.rate is None else count / self.rate
