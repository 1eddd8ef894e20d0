"""A batch with failed rows: the sequences of these rows end, and all others compute the batch again."""

from __future__ import annotations

from chaski.ml.plan import FailedRowsError
from chaski.runner.engine.in_flight import InFlight
from chaski.runner.engine.isolation import Isolation
from chaski.runner.engine.sequence import Sequence
from chaski.runner.engine.sequence_queue import SequenceQueue
from chaski.runner.prefix.prefix_cache import PrefixCache

__all__ = ["Undoing"]


class Undoing:
    """Returns to the state before the only batch in flight, after some of its rows have failed."""

    def __init__(
        self,
        in_flight: InFlight,
        sequences: SequenceQueue,
        prefix_cache: PrefixCache,
        isolation: Isolation,
    ) -> None:
        self._in_flight = in_flight
        self._sequences = sequences
        self._prefix_cache = prefix_cache
        self._isolation = isolation

    def undo(self, error: FailedRowsError) -> None:
        """End the sequences of the failed rows, and forget the cells of the batch.

        A sequence that cannot go back by one batch computes all its tokens again. If it has moved keys it
        ends as well, because its tokens would get other keys. Raises the error if no sequence has these rows.
        """
        prepared, _, last_used = self._in_flight.batches[0]
        failed = prepared.sequences_of(error.rows)
        if not failed:
            raise error
        self._in_flight.drop()
        self._prefix_cache.drop_noted()
        for sequence in failed:
            self._end(sequence, error)
        for (sequence, count), end in zip(prepared.shares, prepared.ends, strict=True):
            slot, before = sequence.slot, end - count
            if slot.last_used > last_used:
                continue  # another sequence has it now
            has_moved = slot.shifted_at is not None
            self._prefix_cache.keep(slot, before, sequence.groups)
            if len(slot.tokens) < before:
                if has_moved:
                    self._end(sequence, error)
                self._begin_again(sequence)
        for sequence in self._sequences.running:
            if sequence.slot.last_used > last_used:  # it may share cells of the batch
                self._begin_again(sequence)

    def _end(self, sequence: Sequence, error: FailedRowsError) -> None:
        if sequence.is_running:
            self._isolation.fail(sequence, error)

    def _begin_again(self, sequence: Sequence) -> None:
        self._prefix_cache.forget([sequence.slot])
        sequence.slot.groups = sequence.groups
        if sequence.is_running:
            sequence.restart()
