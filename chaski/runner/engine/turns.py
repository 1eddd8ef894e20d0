"""Turns of sequences that decode: on a machine of several stages, each stage computes some of them."""

from __future__ import annotations

import math

from chaski.runner.engine.isolation import Isolation
from chaski.runner.engine.sequence import Sequence
from chaski.runner.engine.sequence_queue import SequenceQueue

__all__ = ["Turns"]

# Smallest number of sequences in a turn. Fewer take as long to compute, since each turn reads all weights.
_LEAST_DECODING = 4


class Turns:
    """Decides whether sequences that decode take turns, and how many have one."""

    def __init__(
        self, num_stages: int, has_draft: bool, sequences: SequenceQueue, isolation: Isolation
    ) -> None:
        self._num_stages = num_stages
        self._has_draft = has_draft
        self._sequences = sequences
        self._isolation = isolation

    @property
    def are_possible(self) -> bool:
        """True if each running sequence can continue while others are in flight."""
        running = self._sequences.running
        return not any(self._isolation.attempt(each, True, _stops_others, each) for each in running)

    def most_decoding(self) -> int | None:
        """Return the largest number of sequences that decode in one batch; None for no limit."""
        if self._num_stages == 1 or self._has_draft:
            return None
        count = sum(each.num_pending == 1 or each.is_speculating for each in self._sequences.running)
        turns = min(self._num_stages, count // _LEAST_DECODING)
        return math.ceil(count / turns) if turns > 1 and self.are_possible else None


def _stops_others(sequence: Sequence) -> bool:
    """Return whether a sequence continues only while nothing is in flight.

    Its context is full, or it continues together with others.
    """
    return sequence.full_context is not None or (sequence.is_open and not sequence.is_speculating)
