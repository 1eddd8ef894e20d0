"""The speculator of an answer that was computed before, in part, and is computed again.

An answer that another machine began is known as far as its reader has it. Its tokens are proposed in long
runs, so that they are computed about as fast as a prompt. The sampler draws each of them again, so it ends in
the same state as before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from chaski.model.output_rows import OutputRow
from chaski.runner.speculation.speculator import Speculator

__all__ = ["WrittenSpeculator"]


class WrittenSpeculator:
    """A `Speculator` of known tokens; after them, or after a mismatch, `following` proposes."""

    def __init__(self, written: Iterable[int], following: Speculator | None) -> None:
        self._left = deque(written)
        self._following = following
        self._requested = 0
        self._is_own = False

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens that are certain."""
        new = list(tokens)
        for token in new:
            if self._left and self._left.popleft() != token:
                self._left.clear()
        if self._following is not None:
            self._following.extend(new)

    def record_acceptance(self, num_proposed: int, num_accepted: int) -> None:
        """Record how many tokens of the last proposal were accepted; known tokens teach nothing."""
        if self._following is not None and not self._is_own:
            self._following.record_acceptance(num_proposed, num_accepted)

    def request(self, max_tokens: int, slot: int, row: OutputRow, place: int) -> None:
        """Ask for the next proposal, of at most `max_tokens`."""
        self._requested, self._is_own = max_tokens, bool(self._left)
        if self._following is not None and not self._is_own:
            self._following.request(max_tokens, slot, row, place)

    def propose(self) -> list[int]:
        """Return at most the requested number of next tokens."""
        if self._is_own:
            return [token for token, _ in zip(self._left, range(self._requested), strict=False)]
        return [] if self._following is None else self._following.propose()
