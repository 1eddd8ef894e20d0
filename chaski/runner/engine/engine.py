"""The engine owns a compiled model, its cache and its slots, and advances all sequences together.

Invariant: the cache contains the tokens of all batches in flight, in launch order, followed by those of at
most one prepared batch. That batch is launched or taken back before another one is prepared.

The engine has no thread. A caller that waits for a sequence advances all of them by one batch;
other callers wait for that and look again. The engine knows tokens and outputs, and nothing about text.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import suppress
from time import perf_counter

from chaski.errors import OptionError
from chaski.kvcache import Cache, CausalCache
from chaski.model.program import Program
from chaski.runner.engine.ahead import Ahead
from chaski.runner.engine.exclusive import Exclusive
from chaski.runner.engine.images import EncodedImages
from chaski.runner.engine.in_flight import InFlight
from chaski.runner.engine.isolation import Isolation
from chaski.runner.engine.live import LiveSequences
from chaski.runner.engine.next_batch import NextBatch
from chaski.runner.engine.overlap import Overlap
from chaski.runner.engine.sequence import Sequence
from chaski.runner.engine.sequence_queue import SequenceQueue
from chaski.runner.engine.stages import Stages
from chaski.runner.engine.undoing import Undoing
from chaski.runner.prefix.prefix_cache import PrefixCache
from chaski.runner.prefix.slots import Policy
from chaski.runner.prefix.tiers import PrefixTiers
from chaski.runner.speculation.speculator import Draft
from chaski.runner.use_guard import UseGuard
from chaski.same_bits import UsualFloats

__all__ = ["Engine"]

# Seconds per wait for blocks that are being read.
_MOMENT = 0.02
# Largest number of sequences in the live figures.
_MOST_SHOWN = 256


class Engine:
    """Runs up to `parallel` sequences at a time; others wait for a slot. Safe to use from several threads.

    policy        how prompts reuse the cells of others; None turns reuse off
    images        the encoder of a model with vision
    draft         the model, or part of it, that proposes tokens for sequences that ask for it
    tiers         where prefixes are kept beyond the cells
    """

    def __init__(
        self,
        program: Program,
        cache: Cache,
        parallel: int,
        policy: Policy | None = Policy.SMALLER_LOSS,
        images: EncodedImages | None = None,
        draft: Draft | None = None,
        tiers: PrefixTiers | None = None,
    ) -> None:
        self.parallel = parallel
        self._program = program
        self._cache = cache
        self._prefix_cache = PrefixCache(cache, parallel, policy, tiers)
        self._exclusive = Exclusive()
        self._guard = UseGuard("the model")
        self._isolation = Isolation()
        sequences = SequenceQueue(self._prefix_cache, self._isolation)
        in_flight = InFlight(program, self._prefix_cache, self._isolation, images)
        next_batch = NextBatch(
            program, cache, self._prefix_cache, sequences, self._isolation, in_flight, images, draft
        )
        self._sequences = sequences
        self._in_flight = in_flight
        self._next = next_batch
        self._stages = Stages(in_flight, next_batch, sequences, self._prefix_cache)
        self._ahead = Ahead(program, cache, in_flight, next_batch, sequences, self._prefix_cache)
        undoing = Undoing(in_flight, sequences, self._prefix_cache, self._isolation)
        self._overlap = Overlap(in_flight, next_batch, sequences, self._isolation, undoing)

    @property
    def most_proposed(self) -> int:
        """Return how many rejected tokens can be dropped without recomputing other tokens."""
        return self._cache.num_droppable

    @property
    def unused_cache_bytes(self) -> int:
        """The bytes of keys and values for which no token has come yet. Callable from any thread."""
        return sum(leaf.unused_bytes for leaf in self._cache.leaves if isinstance(leaf, CausalCache))

    @property
    def draft(self) -> Draft | None:
        """The model, or part of it, that proposes tokens for sequences that ask for it."""
        return self._next.draft

    @property
    def max_outputs(self) -> int:
        """The largest number of outputs in a batch."""
        return self._program.max_outputs

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. It advances whenever any caller is in `wait`.

        Raises OptionError for a group with more tokens or outputs than fit into a batch, and for more members
        than slots; ClosedError after `close`, and ForkError in a forked process.
        """
        self.check_usable()
        sequence.require_slots(self.parallel)
        for group in sequence.groups:
            if len(group) > self._program.max_tokens:
                raise OptionError(
                    f"{len(group)} tokens must be computed at once, but num_batch is "
                    f"{self._program.max_tokens}; load the model with a larger num_batch"
                )
            num_outputs = len(sequence.outputs(group.start, len(group)))
            if num_outputs > self._program.max_outputs:
                raise OptionError(
                    f"{num_outputs} outputs are needed at once, but a batch has "
                    f"{self._program.max_outputs}; load the model with a parallel of at least {num_outputs}"
                )
        self._sequences.waiting.append(sequence)

    def wait(self, sequence: Sequence) -> None:
        """Compute until `sequence` has events. After a failure, the last event is an error.

        Raises ClosedError, also if another thread closes the engine meanwhile, and ForkError.
        """
        self.wait_until(lambda: bool(sequence.events))

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Compute until `is_ready()` is True. The caller needs an unfinished sequence until then."""
        self._guard.check()
        with UsualFloats():
            while not is_ready():
                self._exclusive.run(self._step_unless, is_ready)

    def between_batches(self, work: Callable[[], None]) -> None:
        """Call `work` between two batches, while nothing is computed."""
        self._guard.check()
        with UsualFloats():
            self._exclusive.run(self._work, work)

    def live(self) -> LiveSequences:
        """Return the current figures. Any thread may call it, and the computation continues."""
        return self._sequences.live(_MOST_SHOWN)

    def close(self) -> None:
        """Wait for the batches in flight. Every later use raises ClosedError, also in other threads."""
        self._exclusive.run(self._close)
        if self.tiers is not None:
            self.tiers.close()

    @property
    def cache(self) -> Cache:
        """The cells that all sequences share."""
        return self._cache

    @property
    def tiers(self) -> PrefixTiers | None:
        """The tiers that keep prefixes beyond the cells."""
        return self._prefix_cache.tiers

    @property
    def prefix_cache(self) -> PrefixCache:
        """The slots, and the reuse of their tokens by prompts."""
        return self._prefix_cache

    @property
    def is_forked(self) -> bool:
        """True if this process is a fork of the one that loaded the model, and therefore cannot compute."""
        return self._guard.is_forked

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._guard.is_closed

    def check_open(self) -> None:
        """Raise ClosedError after `close`."""
        self._guard.check_open()

    def check_usable(self) -> None:
        """Raise ClosedError after `close`, and ForkError in a forked process."""
        self._guard.check()

    def _close(self) -> None:
        self._guard.close()
        self._program.wait()

    def _step_unless(self, is_ready: Callable[[], bool]) -> None:
        self._guard.check()
        if not is_ready():
            self._step()

    def _work(self, work: Callable[[], None]) -> None:
        self._guard.check()
        try:
            self._program.wait()
        except Exception as error:
            self._recover(error, self._sequences.running)
            raise
        started = perf_counter()
        self._prefix_cache.keep_noted()
        work()
        self._in_flight.pause(perf_counter() - started)

    def _step(self) -> None:
        """Advance all sequences by one batch. A fault of one sequence ends only that sequence; a fault of the
        batch ends all of them.
        """
        num_failed = self._isolation.num_failed
        try:
            has_advanced = self._advance()
        except Exception as error:
            self._recover(error, self._sequences.running)
            if self._isolation.num_failed == num_failed:
                raise
        except BaseException as error:
            self._recover(error, [])
            raise
        else:
            assert has_advanced or self._isolation.num_failed > num_failed, (
                "a caller waits, and there is nothing to compute"
            )

    def _advance(self) -> bool:
        """Give the sequences of the oldest batch their outputs, and launch the next batch.

        Return False if there is nothing to compute.
        """
        if not self._in_flight.batches and not self._next.launch(self._next.prepare()):
            return self._wait_for_blocks()
        if self._stages.advance():
            return True
        upcoming = self._overlap.prepare()
        if not self._ahead.advance(upcoming):
            self._overlap.advance(upcoming)
        return True

    def _wait_for_blocks(self) -> bool:
        """Wait briefly for blocks that are being restored; return whether there are any."""
        if self._sequences.restoring:
            self._sequences.restoring[0].wait(_MOMENT)
        return self.tiers is not None and bool(self._sequences.restoring or self._sequences.waiting)

    def _recover(self, error: BaseException, ended: Items[Sequence]) -> None:
        """Restart with empty slots after a failure of a whole step. The sequences `ended` end with the error.

        The others compute all their tokens again, with the same answers. Two kinds of sequences cannot do so:
        the sequence that was being handled, since its progress is unknown, and sequences with moved keys.
        """
        with suppress(Exception):  # either it has failed before, or it succeeds and the result is not needed
            self._program.wait()
        self._in_flight.drop()
        self._prefix_cache.drop_noted()
        handled = self._isolation.interrupted()
        if handled is not None:
            self._isolation.fail(handled, error)
        moved = [sequence for sequence in self._sequences.running if sequence.slot.shifted_at is not None]
        for sequence in dict.fromkeys((*self._in_flight.unwritten, *self._sequences.running)):
            if sequence is handled:
                continue
            self._isolation.attempt(sequence, None, sequence.write)
            if sequence.is_running and (sequence in ended or sequence in moved):
                self._isolation.fail(sequence, error)
        self._in_flight.unwritten = []
        self._sequences.restart()
        if self.draft is not None:
            self.draft.forget()
