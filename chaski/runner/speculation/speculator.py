"""Proposing the next tokens of a sequence, so that they can be computed in one batch with the last one.

The sampler decides about each token as it would have without a proposal. So a proposal changes how soon a
token is there, never which one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

__all__ = ["ProposalLength", "Speculator"]

_FIRST_LENGTH, _FIRST_PAUSE = 3, 16


class Speculator(Protocol):
    """Proposes tokens for one sequence.

    A round is `extend`, `record_acceptance` for the proposal before, `request`, and then, when all sequences
    have had their tokens, `propose`.
    """

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens that are certain."""

    def record_acceptance(self, num_proposed: int, num_accepted: int) -> None:
        """Take in how many tokens of the last proposal were accepted."""

    def request(self, max_tokens: int, slot: int) -> None:
        """Ask for the next proposal, of at most `max_tokens`; the sequence runs in the slot of that index."""

    def propose(self) -> list[int]:
        """Return tokens that may come next, at most as many as were requested."""


class ProposalLength:
    """The number of tokens to propose, which depends on how many of the proposals before were accepted.

    It doubles where all were accepted, and is halved where none was. When nothing is left of it, nothing is
    proposed for a while, each time for longer.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._length = _FIRST_LENGTH
        self._pause = _FIRST_PAUSE
        self._resumes_at = 0

    def current(self, num_tokens: int) -> int:
        """Return the length for a sequence of `num_tokens` tokens; 0 during a pause."""
        return 0 if num_tokens < self._resumes_at else min(self._length, self._most)

    def record_acceptance(self, num_proposed: int, num_accepted: int, num_tokens: int) -> None:
        """Take in how many proposed tokens were accepted, and how many tokens the sequence has after that."""
        if num_accepted == num_proposed:
            self._length = min(2 * self._length, self._most)
            self._pause = _FIRST_PAUSE
        elif num_accepted == 0:
            self._length //= 2
        else:
            self._length = num_accepted + 1
        if self._length == 0:
            self._length = 1
            self._resumes_at = num_tokens + self._pause
            self._pause *= 2
