"""The regime of every machine: it computes one batch while the host prepares the next one.

The next batch is prepared as if no sequence ended with the batch in flight, and its tokens are filled in when
they are known. If a sequence ended or came, the prepared batch is taken back, and another one is prepared.
"""

from __future__ import annotations

from chaski.ml.plan import FailedRowsError
from chaski.runner.engine.batch import PreparedBatch
from chaski.runner.engine.in_flight import InFlight
from chaski.runner.engine.isolation import Isolation
from chaski.runner.engine.next_batch import NextBatch
from chaski.runner.engine.sequence import Sequence
from chaski.runner.engine.sequence_queue import SequenceQueue
from chaski.runner.engine.undoing import Undoing

__all__ = ["Overlap"]


class Overlap:
    """Prepares the batch after the one in flight, and launches it, or what is to be computed instead."""

    def __init__(
        self,
        in_flight: InFlight,
        next_batch: NextBatch,
        sequences: SequenceQueue,
        isolation: Isolation,
        undoing: Undoing,
    ) -> None:
        self._in_flight = in_flight
        self._undoing = undoing
        self._next = next_batch
        self._sequences = sequences
        self._isolation = isolation

    def prepare(self) -> PreparedBatch | None:
        """Return the next batch, or None if it depends on outputs of the one in flight."""
        queue = self._sequences
        if queue.restoring:
            return None
        if any(self._isolation.attempt(each, True, _is_open, each) for each in queue.running):
            return None
        return self._next.prepare()

    def advance(self, upcoming: PreparedBatch | None) -> None:
        """End the batch in flight, and launch `upcoming`, or another batch if it is outdated.

        After a batch with failed rows, nothing is in flight.
        """
        try:
            ended = self._in_flight.end_oldest()
        except FailedRowsError as error:
            if upcoming is not None:
                self._next.take_back(upcoming)
            self._undoing.undo(error)
            return
        if upcoming is not None and (self._next.is_drafting or self._is_outdated()):
            self._next.take_back(upcoming)
            upcoming = None
        self._next.propose(ended)
        if upcoming is not None and self._is_outdated():
            self._next.take_back(upcoming)
            upcoming = None
        if upcoming is None:
            self._in_flight.write()  # readers need not wait until ended sequences are copied to the tiers
            upcoming = self._next.prepare()
        self._next.launch(upcoming)
        self._in_flight.write()

    def _is_outdated(self) -> bool:
        """Return whether a prepared batch no longer fits: a sequence ended, came, or proposed tokens."""
        running = self._sequences.running
        if not all(sequence.is_running and not sequence.is_speculating for sequence in running):
            return True
        return self._sequences.can_admit


def _is_open(sequence: Sequence) -> bool:
    return sequence.is_open
