"""The launch strategy for machines such as GPUs that can use tokens before the host has seen them.

The plan samples tokens as the host does. If it can for every sequence, the engine launches the next batch on
these samples before the current batch has ended. If a sequence ends with that batch or continues with another
token, one of its tokens was computed in vain.
"""

from __future__ import annotations

from chaski.kvcache import Cache
from chaski.model.program import Program
from chaski.runner.engine.batch import PreparedBatch
from chaski.runner.engine.in_flight import InFlight
from chaski.runner.engine.next_batch import NextBatch
from chaski.runner.engine.sequence_queue import SequenceQueue
from chaski.runner.prefix.prefix_cache import PrefixCache

__all__ = ["Ahead"]

# Largest number of batches launched ahead in a row while prefixes wait to be kept, since that is possible
# only between batches.
_MOST_AHEAD = 32


class Ahead:
    """Launches a batch on the samples of the batch in flight."""

    def __init__(
        self,
        program: Program,
        cache: Cache,
        in_flight: InFlight,
        next_batch: NextBatch,
        sequences: SequenceQueue,
        prefix_cache: PrefixCache,
    ) -> None:
        self._program = program
        self._cache = cache
        self._in_flight = in_flight
        self._next = next_batch
        self._sequences = sequences
        self._prefix_cache = prefix_cache

    def advance(self, upcoming: PreparedBatch | None) -> bool:
        """Launch `upcoming` ahead and end the batch before it, if possible; return whether it was."""
        if upcoming is None or not self._can_launch(upcoming):
            return False
        before, run, _ = self._in_flight.batches[0]
        run.drop_outputs()
        rows = before.last_rows()
        self._in_flight.launch(upcoming, (run, rows))
        self._in_flight.end_oldest()
        samples = run.samples()
        for (sequence, _), end in zip(upcoming.shares, upcoming.ends, strict=True):
            slot = sequence.slot
            held = len(slot.tokens)
            if held == end:
                continue
            if sequence.known(held, 1) == [samples[rows[sequence]]]:
                slot.tokens += sequence.known(held, 1)
                self._prefix_cache.note(sequence)
            else:
                upcoming.mistaken.append(sequence)
                self._prefix_cache.keep(slot, held, sequence.groups)
        self._in_flight.write()
        return True

    def _can_launch(self, upcoming: PreparedBatch) -> bool:
        """Return whether all tokens of `upcoming` that are not known yet are found by the machine."""
        if not self._program.launches_ahead or self._next.draft is not None or upcoming.images:
            return False
        cache, has_waited = self._prefix_cache, self._in_flight.num_ahead >= _MOST_AHEAD
        if self._sequences.can_admit or cache.must_keep or (cache.has_noted and has_waited):
            return False
        for_sure = self._cache.num_droppable < _MOST_AHEAD
        rows = self._in_flight.batches[0].prepared.last_rows()
        most = self._program.max_top_logits
        return all(sequence.is_foreseen(most, for_sure) for sequence in rows)
