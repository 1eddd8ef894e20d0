"""Pauses between attempts, which grow as attempts fail."""

from __future__ import annotations

__all__ = ["Backoff"]


class Backoff:
    """Pauses that double from `first` to `longest` seconds."""

    def __init__(self, first: float = 0.5, longest: float = 8.0) -> None:
        self._first = self._next = first
        self._longest = longest

    def pause(self) -> float:
        """Return the seconds until the next attempt."""
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause

    def reset(self) -> None:
        """Begin with the shortest pause again, after a success."""
        self._next = self._first
