"""Rates as they were measured so far."""

from __future__ import annotations

import math

__all__ = ["Speed"]


class Speed:
    """A rate in units a second; the latest measurements count most. `rate` is None where nothing is known."""

    def __init__(self, guess: float | None = None) -> None:
        self.rate = guess

    def measure(self, count: float, seconds: float) -> None:
        """Take in that `count` units took so long."""
        if count > 0 and seconds > 0:
            rate = count / seconds
            self.rate = rate if self.rate is None else 0.7 * self.rate + 0.3 * rate

    def seconds(self, count: float) -> float:
        """Return how long so many units would take; for ever, if nothing is known."""
        return math.inf if self.rate is None else count / self.rate
