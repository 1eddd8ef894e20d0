"""`Slowest`: which of many connections or bodies to end first. The cost hardly grows with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

__all__ = ["Slowest"]

_M = TypeVar("_M")

_LOOK_SECONDS = 0.25
"""Least seconds between two searches among all."""
_MOST = 256
"""Slow ones that a search finds."""


class Slowest(Generic[_M]):
    """The slow ones among many, worst first. A search finds several, and there are few searches.

    is_slow  whether one is slow; asked again when its turn has come
    """

    def __init__(self, is_slow: Callable[[_M], bool]) -> None:
        self._is_slow = is_slow
        self._found: list[_M] = []
        self._searched_at = float("-inf")

    def next(self, search: Callable[[], Iterable[tuple[Any, _M]]], now: float) -> _M | None:
        """Return the worst one, which does not come again while it stays; None if none is slow.

        search  returns the slow ones, each with its badness
        now     the time in seconds
        """
        while True:
            while self._found:
                if self._is_slow(member := self._found.pop()):
                    return member
            if now < self._searched_at + _LOOK_SECONDS:
                return None
            self._searched_at = now
            found = sorted(search(), key=lambda each: each[0])
            self._found = [member for _, member in found[-_MOST:]]
