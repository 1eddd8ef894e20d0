"""The regime of a machine of several stages, such as nodes that hold some layers each.

Each stage computes another batch at the same time. Prompts are cut into small batches, each of which starts
before the one before it has ended, and sequences that decode take turns.
"""

from __future__ import annotations

from chaski.runner.engine.in_flight import InFlight
from chaski.runner.engine.next_batch import NextBatch
from chaski.runner.engine.sequence_queue import SequenceQueue
from chaski.runner.prefix.prefix_cache import PrefixCache

__all__ = ["Stages"]


class Stages:
    """Keeps more batches in flight than there are stages, so that one always waits for the first stage."""

    def __init__(
        self, in_flight: InFlight, next_batch: NextBatch, sequences: SequenceQueue, prefix_cache: PrefixCache
    ) -> None:
        self._in_flight = in_flight
        self._next = next_batch
        self._sequences = sequences
        self._prefix_cache = prefix_cache

    def advance(self) -> bool:
        """Launch a batch that depends on none in flight, or end the oldest of several; return whether."""
        if self._in_flight.num_stages == 1:
            return False
        if self._follow():
            return True
        if len(self._in_flight.batches) == 1:
            return False
        self._next.propose(self._in_flight.end_oldest())
        self._follow()
        self._in_flight.write()
        return True

    def _follow(self) -> bool:
        """Launch a batch of sequences that do not wait for a batch in flight; return whether there is one."""
        batches = self._in_flight.batches
        is_full = len(batches) > self._in_flight.num_stages
        if not self._can_follow() or (is_full and any(batches[0].prepared.num_outputs)):
            return False
        following = self._next.prepare(self._in_flight.awaiting)
        if following is not None and is_full:
            self._in_flight.end_oldest()
        return following is not None and self._next.launch(following)

    def _can_follow(self) -> bool:
        """Return whether a batch can start before those in flight have ended."""
        if self._prefix_cache.must_keep or self._next.is_drafting:
            return False
        # Decoding could continue like this without limit, and noted prefixes would never be kept. A draft
        # computes only while nothing is in flight.
        if self._in_flight.awaiting and (self._prefix_cache.has_noted or self._next.draft is not None):
            return False
        queue = self._sequences
        if queue.restoring or queue.can_admit or not all(each.is_running for each in queue.running):
            return False
        return self._next.turns.are_possible
