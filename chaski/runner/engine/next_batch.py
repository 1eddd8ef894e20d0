"""The next batch: it is prepared while others are in flight, and then launched or taken back."""

from __future__ import annotations

from collections.abc import Sequence as Items

from chaski.kvcache import Cache
from chaski.model.program import Program
from chaski.runner.engine.batch import PreparedBatch, prepare_batch
from chaski.runner.engine.images import EncodedImages
from chaski.runner.engine.in_flight import InFlight
from chaski.runner.engine.isolation import Isolation
from chaski.runner.engine.scheduler import Scheduler
from chaski.runner.engine.sequence import Sequence
from chaski.runner.engine.sequence_queue import SequenceQueue
from chaski.runner.engine.turns import Turns
from chaski.runner.prefix.prefix_cache import PrefixCache
from chaski.runner.speculation.speculator import Draft

__all__ = ["NextBatch"]

# A batch of prompts on a machine of several stages has at most 1 / _PART of `max_tokens`, but at least
# _LEAST_PART tokens.
_PART, _LEAST_PART = 4, 64
# Bytes restored per step: while other sequences compute, and while the machine is idle.
_SLICE, _WHOLE = 16 << 20, 128 << 20


class NextBatch:
    """Admits sequences, makes room for their tokens in the cache, and prepares batches of them.

    draft    the model, or part of it, that proposes tokens for sequences that ask for it
    """

    def __init__(
        self,
        program: Program,
        cache: Cache,
        prefix_cache: PrefixCache,
        sequences: SequenceQueue,
        isolation: Isolation,
        in_flight: InFlight,
        images: EncodedImages | None,
        draft: Draft | None,
    ) -> None:
        self.draft = draft
        self.turns = Turns(program.stages, draft is not None, sequences, isolation)
        self._program = program
        self._cache = cache
        self._prefix_cache = prefix_cache
        self._sequences = sequences
        self._isolation = isolation
        self._in_flight = in_flight
        self._images = images
        part = max(_LEAST_PART, program.max_tokens // _PART) if program.stages > 1 else program.max_tokens
        self._scheduler: Scheduler[Sequence] = Scheduler(
            program.max_tokens, program.max_outputs, min(part, program.max_tokens)
        )

    def prepare(self, without: Items[Sequence] = ()) -> PreparedBatch | None:
        """Return the next batch, or None if there is nothing to compute; `without` have no part in it."""
        self._admit()
        for sequence in self._sequences.running:
            if not self._isolation.attempt(sequence, False, self._make_room, sequence):
                self._prefix_cache.forget([sequence.slot])
        able = [each for each in self._sequences.running if each.is_running and each not in without]
        try:
            shares = self._scheduler.next(able, self.turns.most_decoding())
            return prepare_batch(shares, self._program, self._images) if shares else None
        except Exception as error:
            self._end_those_of(able, error)
            return self.prepare(without)

    def take_back(self, prepared: PreparedBatch) -> None:
        """Free the cells of a batch that will not be launched."""
        self._cache.undo_forward(prepared.batch)

    def launch(self, prepared: PreparedBatch | None) -> bool:
        """Launch a batch; return whether there was one.

        Images that were not encoded before are encoded now, while the machine computes nothing else. If one
        cannot be encoded, its sequence ends, and another batch is prepared and launched instead.
        """
        while prepared is not None and prepared.images and not self._encode(prepared):
            self.take_back(prepared)
            prepared = self.prepare(self._in_flight.awaiting)
        if self._prefix_cache.tiers is not None:
            self._prefix_cache.tiers.set_busy(prepared is not None or bool(self._in_flight.batches))
        if prepared is None:
            return False
        self._in_flight.launch(prepared)
        return True

    @property
    def is_drafting(self) -> bool:
        """True if the draft computes proposals next; the cells of a prepared batch may be in their way."""
        return self.draft is not None and self.draft.is_requested

    def propose(self, ended: PreparedBatch) -> None:
        """Let the sequences that got tokens from a batch propose the next ones."""
        if self.draft is not None:
            self.draft.compute()
        for (sequence, _), count in zip(ended.shares, ended.num_outputs, strict=True):
            if sequence.is_running and count:
                self._isolation.attempt(sequence, None, sequence.propose)

    def _admit(self) -> None:
        """Free the slots of sequences that ended, and give them to sequences that wait."""
        self._sequences.dismiss()
        if self._prefix_cache.tiers is None:
            self._sequences.admit()
        elif not self._in_flight.batches:
            # The tiers read and write cells, which must not change meanwhile.
            self._prefix_cache.keep_noted()
            self._sequences.admit()
            self._sequences.restore(_SLICE if self._sequences.running else _WHOLE)

    def _make_room(self, sequence: Sequence) -> bool:
        dropped = sequence.full_context
        if dropped:
            self._prefix_cache.shift(sequence, dropped)
        if sequence.origin is not None:
            self._prefix_cache.fork(sequence, sequence.origin)
        return True

    def _end_those_of(self, sequences: Items[Sequence], error: Exception) -> None:
        """End the sequences whose part of a batch cannot be prepared alone; if there is none, end all."""
        able = [self._isolation.attempt(each, False, self._prepare_alone, each) for each in sequences]
        if all(able):
            for sequence in sequences:
                self._isolation.fail(sequence, error)
        self._prefix_cache.forget(sequence.slot for sequence in sequences if not sequence.is_running)

    def _prepare_alone(self, sequence: Sequence) -> bool:
        shares = Scheduler[Sequence](self._program.max_tokens, self._program.max_outputs).next([sequence])
        if shares:
            self.take_back(prepare_batch(shares, self._program, self._images))
        return True

    def _encode(self, prepared: PreparedBatch) -> bool:
        """Encode the new images of a batch; return whether all its sequences still run."""
        assert self._images is not None, "a model without vision gets no images"
        for sequence, count in prepared.shares:
            for run in sequence.images_for(len(sequence.slot.tokens), count).runs:
                self._isolation.attempt(sequence, None, self._images.rows, run.image)
        return all(sequence.is_running for sequence, _ in prepared.shares)
