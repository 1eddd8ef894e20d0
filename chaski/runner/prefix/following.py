"""Sequences that wait for another sequence to compute the beginning of their prompt."""

from __future__ import annotations

from msgspec import Struct

from chaski.runner.engine.sequence import Sequence
from chaski.runner.prefix.slots import Slot

__all__ = ["LEAST", "Following"]

LEAST = 64
"""The number of tokens to save for which a sequence waits. A batch of fewer takes little longer with them."""


class Following(Struct, frozen=True):
    """`sequence` starts when the slot of `leader` holds the `length` tokens that both begin with.

    The leader has no more of them to compute than the sequence itself, so waiting never takes longer than
    computing.
    """

    sequence: Sequence
    leader: Sequence
    slot: Slot
    length: int

    @property
    def is_ready(self) -> bool:
        """True when the wait is over: the tokens are computed, or the leader has ended."""
        return not self.leader.is_running or len(self.slot.tokens) >= self.length
