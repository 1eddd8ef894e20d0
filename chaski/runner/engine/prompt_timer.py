"""The speed of prompts, which decides whether restoring a prefix is faster than computing it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

__all__ = ["PromptTimer"]

# A batch of at least this many tokens mostly computes prompts. A smaller one takes longer per token.
_PROMPT = 64


class PromptTimer:
    """Times batches from their launch to their end, or from the end of the one before them, if that is later.

    `measure` receives a number of prompt tokens and the seconds that they took.
    """

    def __init__(self, measure: Callable[[float, float], None]) -> None:
        self._measure = measure
        self._computing = 0  # tokens of batches that have not ended
        self._began = 0.0

    def launch(self, count: int) -> None:
        """Note the launch of a batch of `count` tokens."""
        if not self._computing:
            self._began = perf_counter()
        self._computing += count

    def end(self, count: int | None = None) -> None:
        """Note the end of the `count` tokens that were launched first; None for all."""
        ended = self._computing if count is None else count
        now = perf_counter()
        if ended >= _PROMPT:
            self._measure(ended, now - self._began)
        self._computing -= ended
        self._began = now

    def pause(self, seconds: float) -> None:
        """Leave out `seconds` in which nothing was computed."""
        self._began += seconds

    def drop(self) -> None:
        """Do not measure the batches in flight."""
        self._computing = 0
