"""How long prompts take, which says whether it pays to bring back what was computed for one before."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

__all__ = ["PromptTimer"]

# A batch of so many tokens computes prompts, for the most part. A smaller one takes longer for each token.
_PROMPT = 64


class PromptTimer:
    """Times batches from their launch to their end, or from the end of the one before them, if that is later.

    `measure` gets how many tokens prompts had, and how many seconds they took.
    """

    def __init__(self, measure: Callable[[float, float], None]) -> None:
        self._measure = measure
        self._computing = 0  # tokens of batches that have not ended
        self._began = 0.0

    def launch(self, count: int) -> None:
        """A batch of so many tokens is launched."""
        if not self._computing:
            self._began = perf_counter()
        self._computing += count

    def end(self, count: int | None = None) -> None:
        """`count` tokens have ended, those that were launched first; None: all of them."""
        ended = self._computing if count is None else count
        now = perf_counter()
        if ended >= _PROMPT:
            self._measure(ended, now - self._began)
        self._computing -= ended
        self._began = now

    def pause(self, seconds: float) -> None:
        """Nothing was computed for a while."""
        self._began += seconds

    def drop(self) -> None:
        """Measure nothing of what is computed."""
        self._computing = 0
