"""Guessing the next tokens of a sequence, so that they can be computed in one batch with the last one.

The sampler decides about each as it would have without. So a guess changes how soon a token is there, never
which one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

__all__ = ["Guesser", "Length"]

_FIRST_LENGTH, _FIRST_PAUSE = 3, 16


class Guesser(Protocol):
    """Guesses for one sequence.

    A round is `accept`, `learn` about the guesses before, `wish`, and then, when all sequences have had their
    tokens, `guess`.
    """

    def accept(self, tokens: Iterable[int]) -> None:
        """Append tokens that are certain."""

    def learn(self, num_guessed: int, num_right: int) -> None:
        """How many of the last guesses came true."""

    def wish(self, most: int, slot: int) -> None:
        """Up to `most` guesses are of use next; the sequence runs in the slot of that index."""

    def guess(self) -> list[int]:
        """Tokens that may come next, as many as were wished for at most."""


class Length:
    """How many tokens are guessed: it depends on how the guesses before fared.

    All right, twice as many; all wrong, half as many; and when none is left, nothing is guessed for a while,
    each time for longer.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._length = _FIRST_LENGTH
        self._pause = _FIRST_PAUSE
        self._resumes_at = 0

    def now(self, num_tokens: int) -> int:
        """For a sequence of so many tokens."""
        return 0 if num_tokens < self._resumes_at else min(self._length, self._most)

    def learn(self, num_guessed: int, num_right: int, num_tokens: int) -> None:
        """How many of the last guesses came true, and how many tokens there are after that."""
        if num_right == num_guessed:
            self._length = min(2 * self._length, self._most)
            self._pause = _FIRST_PAUSE
        elif num_right == 0:
            self._length //= 2
        else:
            self._length = num_right + 1
        if self._length == 0:
            self._length = 1
            self._resumes_at = num_tokens + self._pause
            self._pause *= 2
