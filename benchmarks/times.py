"""The times of engines that compute the same work in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["OURS", "Times"]

OURS = "chaski"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds by the clock, and processor seconds of all threads."""

    wall: float
    cpu: float

    @classmethod
    def best(cls, several: Sequence[Times]) -> Times:
        """Return the least of each."""
        return cls(min(one.wall for one in several), min(one.cpu for one in several))
