"""The engine owns a compiled model, its cache and its slots, and moves all sequences forward together.

It has no thread of its own. A caller that waits for a sequence moves all of them on by one batch; other
callers wait for that and look again. It knows tokens and outputs, and nothing about text.

While the machine computes one batch, the next one is prepared, as if no sequence ended with this one; its
tokens are filled in when they are known. When a sequence did end, or came, the batch is taken back and
prepared again.

Some machines take tokens from results that the host has not seen. Where every sequence goes on with its
largest logit, the next batch is launched on them before the one that is computed has ended. A sequence that
ends with that one, or goes on with another token, has one computed in vain.

A machine of several stages, such as nodes with some layers each, computes as many batches at the same time.
So prompts are computed in small batches, each of which begins before the one before it ends, and sequences
that decode take turns: while some are computed by one stage, others are computed by the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from contextlib import suppress
from time import perf_counter

import numpy as np
import numpy.typing as npt

from chaski.errors import OptionError
from chaski.forks import ForkGuard
from chaski.kvcache import Cache
from chaski.model.output_rows import OutputRows
from chaski.model.program import Program, Run
from chaski.runner.engine.batch import PreparedBatch, prepare_batch
from chaski.runner.engine.exclusive import Exclusive
from chaski.runner.engine.images import EncodedImages
from chaski.runner.engine.isolation import Isolation
from chaski.runner.engine.live import LiveSequences
from chaski.runner.engine.prompt_timer import PromptTimer
from chaski.runner.engine.scheduler import Scheduler
from chaski.runner.engine.sequence import Sequence
from chaski.runner.engine.sequence_queue import SequenceQueue
from chaski.runner.prefix.prefix_cache import PrefixCache
from chaski.runner.prefix.slots import Policy
from chaski.runner.prefix.tiers import PrefixTiers
from chaski.runner.speculation.speculator import Draft
from chaski.same_bits import UsualFloats

__all__ = ["Engine"]

F32 = npt.NDArray[np.float32]

# Bytes that come back between two batches: of a sequence while others compute, and while nobody does.
_SLICE, _WHOLE = 16 << 20, 128 << 20
# Seconds to wait at once for what is being read.
_MOMENT = 0.02
# Where there are several stages, a batch of prompts has this part of the tokens that it may have, or so many.
_PART, _LEAST_PART = 4, 64
# Where there are several stages, sequences that decode take turns if each turn has at least so many: what
# fewer compute takes as long, since the weights are read for each turn.
_LEAST_DECODING = 4
# Batches that may be launched ahead, one after the other, while something is to be kept in the tiers.
_MOST_AHEAD = 32
# Sequences of which figures are given at a time.
_MOST_SHOWN = 256


class Engine:
    """Runs up to `parallel` sequences at a time; more wait for a slot. Safe to use from several threads.

    policy        how prompts reuse what was computed for others; None for not at all
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
        self._program = program
        self._cache = cache
        self._prefix_cache = PrefixCache(cache, parallel, policy, tiers)
        self.parallel = parallel
        self._images = images
        self.draft = draft
        part = max(_LEAST_PART, program.max_tokens // _PART) if program.stages > 1 else program.max_tokens
        self._scheduler: Scheduler[Sequence] = Scheduler(
            program.max_tokens, program.max_outputs, min(part, program.max_tokens)
        )
        self._computing: deque[tuple[PreparedBatch, Run]] = deque()  # in the order of their launches
        self._timer = PromptTimer(_nothing if tiers is None else tiers.prefill.measure)
        self._num_ahead = 0  # batches that were launched before others had ended, one after the other
        self._unwritten: list[Sequence] = []  # they have outputs, and their events are still to be made
        self._isolation = Isolation()
        self._sequences = SequenceQueue(self._prefix_cache, self._isolation)
        self._exclusive = Exclusive()
        self._fork_guard = ForkGuard("the model")

    @property
    def can_speculate(self) -> bool:
        """True if rejected tokens can be dropped again without computing others anew."""
        return self._cache.can_step_back

    @property
    def max_outputs(self) -> int:
        """The largest number of outputs of a batch."""
        return self._program.max_outputs

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. It runs while `wait` is called, for it or for any other one.

        Raises OptionError for a group that is larger than a batch, or has more outputs than one, and for more
        beams than `parallel`; ForkError.
        """
        self.check_fork()
        width = 1 + len(sequence.members)
        if width > self.parallel:
            raise OptionError(
                f"num_beams is {width}, but only {self.parallel} sequences are computed at a time; "
                f"search with at most {self.parallel} beams, or load the model with parallel={width}"
            )
        for group in sequence.groups:
            if len(group) > self._program.max_tokens:
                raise OptionError(
                    f"{len(group)} tokens must be computed at once, but num_batch is "
                    f"{self._program.max_tokens}; load the model with a larger num_batch"
                )
            num_outputs = len(sequence.outputs(group.start, len(group)))
            if num_outputs > self._program.max_outputs:
                raise OptionError(
                    f"{num_outputs} outputs are wanted at once, but a batch has {self._program.max_outputs}; "
                    "load the model with parallel as large as that"
                )
        self._sequences.waiting.append(sequence)

    def wait(self, sequence: Sequence) -> None:
        """Compute until `sequence` has events, the last of which is an error if something went wrong."""
        self.wait_until(lambda: bool(sequence.events))

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Compute until `is_ready()`; while it is not, a sequence of the caller has not ended."""
        self._fork_guard.check()
        with UsualFloats():
            while not is_ready():
                self._exclusive.run(self._step_unless, is_ready)

    def between_batches(self, work: Callable[[], None]) -> None:
        """Call `work` while nothing is computed; the sequences wait for it."""
        self._fork_guard.check()
        with UsualFloats():
            self._exclusive.run(self._work, work)

    def live(self) -> LiveSequences:
        """Return the figures of now. Callable from any thread; what is computed goes on meanwhile."""
        return self._sequences.live(_MOST_SHOWN)

    def close(self) -> None:
        """Let the machine finish what it computes. Nothing may be submitted any more."""
        self._exclusive.run(self._program.wait)
        if self.tiers is not None:
            self.tiers.close()

    @property
    def cache(self) -> Cache:
        """The cells that all sequences share."""
        return self._cache

    @property
    def tiers(self) -> PrefixTiers | None:
        """Where prefixes are kept beyond the cells."""
        return self._prefix_cache.tiers

    @property
    def prefix_cache(self) -> PrefixCache:
        """The slots, and what prompts take over from them."""
        return self._prefix_cache

    @property
    def is_forked(self) -> bool:
        """True if this process is a fork of the one that loaded the model, and cannot compute with it."""
        return self._fork_guard.is_forked

    def check_fork(self) -> None:
        """Raise ForkError in a fork."""
        self._fork_guard.check()

    def _step_unless(self, is_ready: Callable[[], bool]) -> None:
        if not is_ready():
            self._step()

    def _work(self, work: Callable[[], None]) -> None:
        try:
            self._program.wait()
        except Exception as error:
            self._recover(error, self._sequences.running)
            raise
        started = perf_counter()
        self._prefix_cache.keep_noted()
        work()
        self._timer.pause(perf_counter() - started)

    def _step(self) -> None:
        """Go on by a batch. A fault of one sequence ends that sequence, a fault of the batch all that run."""
        num_failed = self._isolation.num_failed
        try:
            went_on = self._go_on()
        except Exception as error:
            self._recover(error, self._sequences.running)
            if self._isolation.num_failed == num_failed:
                raise
        except BaseException as error:
            self._recover(error, [])
            raise
        else:
            assert went_on or self._isolation.num_failed > num_failed, (
                "somebody waits, and there is nothing to compute"
            )

    def _go_on(self) -> bool:
        """Give every sequence its outputs of the oldest batch that is computed, and go on with the next one.

        Returns False if there is nothing to compute.
        """
        if not self._computing and not self._launch(self._prepare()):
            return self._wait_for_blocks()
        if self._follow():
            return True
        if len(self._computing) > 1:
            self._propose(self._end_oldest())
            self._follow()
            self._write()
            return True
        upcoming = self._prepare() if self._is_foreseeable() else None
        if upcoming is not None and self._can_launch_ahead(upcoming):
            self._launch_ahead(upcoming)
            return True
        prepared = self._end_oldest()
        if upcoming is not None and (self._is_drafting or self._is_outdated()):
            self._cache.undo_forward(upcoming.batch)
            upcoming = None
        self._propose(prepared)
        if upcoming is not None and self._is_outdated():
            self._cache.undo_forward(upcoming.batch)
            upcoming = None
        if upcoming is None:
            self._write()  # what ended is copied next, which nobody who reads it has to wait for
            upcoming = self._prepare()
        self._launch(upcoming)
        self._write()
        return True

    def _follow(self) -> bool:
        """Launch what can be computed before those that are computed have ended; return whether.

        So many are on their way that one of them waits for the first stage.
        """
        is_full = len(self._computing) > self._program.stages
        if not self._can_follow() or (is_full and any(self._computing[0][0].num_outputs)):
            return False
        following = self._prepare(self._awaiting())
        if following is not None and is_full:
            self._end_oldest()
        return following is not None and self._launch(following)

    def _can_launch_ahead(self, upcoming: PreparedBatch) -> bool:
        """True if a batch needs nothing of the one that is computed but tokens that the machine finds."""
        if not self._program.launches_ahead or self.draft is not None or upcoming.images:
            return False
        cache, most = self._prefix_cache, _MOST_AHEAD
        if self._sequences.can_admit or cache.must_keep or (cache.has_noted and self._num_ahead >= most):
            return False
        for_sure = not self._cache.can_step_back
        return all(sequence.takes_largest(for_sure) for sequence in self._computing[0][0].last_rows())

    def _launch_ahead(self, upcoming: PreparedBatch) -> None:
        """Launch a batch behind the one that is computed, end that one, and note the tokens that it found."""
        before, run = self._computing[0]
        run.drop_outputs()
        rows = before.last_rows()
        self._launch(upcoming, (run, rows))
        self._num_ahead += 1
        self._end_oldest()
        largest = run.top_logits()[:, 1, 0]
        for (sequence, _), end in zip(upcoming.shares, upcoming.ends, strict=True):
            slot = sequence.slot
            held = len(slot.tokens)
            if held == end:
                continue
            if sequence.known(held, 1) == [largest[rows[sequence]]]:
                slot.tokens += sequence.known(held, 1)
                self._prefix_cache.note(sequence)
            else:
                upcoming.mistaken.append(sequence)
                self._prefix_cache.keep(slot, held, sequence.groups)
        self._write()

    def _end_oldest(self) -> PreparedBatch:
        """Wait for the batch that was launched first, and give its sequences their outputs."""
        prepared, run = self._computing[0]
        self._program.wait(len(self._computing) - 1)
        if len(self._computing) == 1:
            self._prefix_cache.keep_noted()
            self._num_ahead = 0
            self._timer.end()
        elif self._program.stages == 1:
            self._timer.end(len(prepared.batch.tokens))
        elif any(prepared.num_outputs):
            self._timer.drop()  # the time was that of several batches
        self._unwritten += [sequence for sequence, _ in prepared.shares]
        if any(prepared.num_outputs):
            self._take(prepared, run.outputs(), run.top_logits())
        self._computing.popleft()
        return prepared

    def _write(self) -> None:
        """Make the events of what was taken."""
        for sequence in self._unwritten:
            self._isolation.attempt(sequence, None, sequence.write)
        self._unwritten = []

    def _prepare(self, awaiting: Items[Sequence] = ()) -> PreparedBatch | None:
        """Return the next batch, which has none of `awaiting`, or None if there is nothing to compute."""
        self._sequences.dismiss()
        if self.tiers is None:
            self._sequences.admit()
        elif not self._computing:
            # Cells are read before others may be written, and both while nothing is computed.
            self._prefix_cache.keep_noted()
            self._sequences.admit()
            self._sequences.restore(_SLICE if self._sequences.running else _WHOLE)
        for sequence in self._sequences.running:
            if not self._isolation.attempt(sequence, False, self._make_room, sequence):
                self._prefix_cache.forget([sequence.slot])
        running = self._sequences.running
        able = [each for each in running if each.is_running and each not in awaiting]
        try:
            shares = self._scheduler.next(able, self._most_decoding())
            return prepare_batch(shares, self._program, self._images) if shares else None
        except Exception as error:
            self._end_those_of(able, error)
            return self._prepare(awaiting)

    def _wait_for_blocks(self) -> bool:
        """Wait a little for what comes back, if anything does; return whether."""
        if self._sequences.restoring:
            self._sequences.restoring[0].wait(_MOMENT)
        return self.tiers is not None and bool(self._sequences.restoring or self._sequences.waiting)

    def _can_follow(self) -> bool:
        """True if a batch can begin before those that are computed have ended."""
        if self._program.stages == 1 or self._prefix_cache.must_keep or self._is_drafting:
            return False
        # Decoding could go on like this for ever, and what was noted would wait; drafts compute alone.
        if self._awaiting() and (self._prefix_cache.has_noted or self.draft is not None):
            return False
        running, queue = self._sequences.running, self._sequences
        if queue.restoring or queue.can_admit or not all(sequence.is_running for sequence in running):
            return False
        return self._can_take_turns()

    def _can_take_turns(self) -> bool:
        """True if sequences can go on while others are computed."""
        running = self._sequences.running
        return not any(self._isolation.attempt(each, True, _stops_others, each) for each in running)

    def _awaiting(self) -> list[Sequence]:
        """Return the sequences whose next tokens depend on batches that are computed."""
        found: list[Sequence] = []
        for prepared, _ in self._computing:
            shares = zip(prepared.shares, prepared.num_outputs, strict=True)
            found += [sequence for (sequence, _), num_outputs in shares if num_outputs]
        return found

    def _most_decoding(self) -> int | None:
        """Return how many sequences decode at most in a batch, so that they take turns; None for all."""
        if self._program.stages == 1 or self.draft is not None:
            return None
        count = sum(each.num_pending == 1 or each.is_speculating for each in self._sequences.running)
        turns = min(self._program.stages, count // _LEAST_DECODING)
        return math.ceil(count / turns) if turns > 1 and self._can_take_turns() else None

    def _make_room(self, sequence: Sequence) -> bool:
        dropped = sequence.full_context
        if dropped:
            self._prefix_cache.shift(sequence, dropped)
        if sequence.origin is not None:
            self._prefix_cache.fork(sequence, sequence.origin)
        return True

    def _end_those_of(self, sequences: Items[Sequence], error: Exception) -> None:
        """End the sequences whose part of a batch cannot be prepared; all, where each part alone can."""
        able = [self._isolation.attempt(each, False, self._prepare_alone, each) for each in sequences]
        if all(able):
            for sequence in sequences:
                self._isolation.fail(sequence, error)
        self._prefix_cache.forget(sequence.slot for sequence in sequences if not sequence.is_running)

    def _prepare_alone(self, sequence: Sequence) -> bool:
        shares = Scheduler[Sequence](self._program.max_tokens, self._program.max_outputs).next([sequence])
        if shares:
            self._cache.undo_forward(prepare_batch(shares, self._program, self._images).batch)
        return True

    def _launch(
        self, prepared: PreparedBatch | None, before: tuple[Run, Mapping[Sequence, int]] | None = None
    ) -> bool:
        """Fill in the tokens and the rows of images, and begin to compute; return whether there is a batch.

        `before` is the run that finds the tokens that are not known, with its `last_rows`. Images that were
        not encoded before are encoded now, while the machine computes nothing else.
        """
        if prepared is not None and prepared.images and not self._encode(prepared):
            self._cache.undo_forward(prepared.batch)
            return self._launch(self._prepare(self._awaiting()))
        if self.tiers is not None:
            self.tiers.set_busy(prepared is not None or bool(self._computing))
        if prepared is None:
            return False
        tokens = prepared.fill(self._images)
        most = self._program.max_top_logits
        prepared.num_top_logits[:] = [sequence.num_top_logits(most) for sequence, _ in prepared.shares]
        each = zip(prepared.num_top_logits, prepared.num_outputs, strict=True)
        inputs = prepared.inputs if before is None else prepared.inputs_after(*before)
        run = self._program.launch(inputs, [n for n, count in each for _ in range(count)])
        self._computing.append((prepared, run))
        self._timer.launch(len(prepared.batch.tokens))
        for (sequence, count), computed in zip(prepared.shares, tokens, strict=True):
            sequence.slot.tokens += computed
            if len(computed) == count:
                self._prefix_cache.note(sequence)
        return True

    def _encode(self, prepared: PreparedBatch) -> bool:
        """Encode the new images of a batch; return whether all its sequences still run."""
        assert self._images is not None, "a model without vision gets no images"
        for sequence, count in prepared.shares:
            for run in sequence.images_for(len(sequence.slot.tokens), count).runs:
                self._isolation.attempt(sequence, None, self._images.rows, run.image)
        return all(sequence.is_running for sequence, _ in prepared.shares)

    def _take(self, prepared: PreparedBatch, outputs: OutputRows, top_logits: F32) -> None:
        """Hand out the outputs. Those of sequences that ended meanwhile are dropped."""
        row = 0
        counts = zip(prepared.shares, prepared.num_outputs, prepared.num_top_logits, strict=True)
        for (sequence, _), count, num_top_logits in counts:
            end = row + count
            if sequence.is_running and count and sequence not in prepared.mistaken:
                rows, top = outputs.part(row, end), top_logits[row:end, :, :num_top_logits]
                self._isolation.attempt(sequence, None, self._hand_out, sequence, rows, top)
            row = end

    def _hand_out(self, sequence: Sequence, rows: OutputRows, top_logits: F32) -> None:
        num_rejected = sequence.take(rows, top_logits)
        if num_rejected:
            slot = sequence.slot
            self._prefix_cache.keep(slot, len(slot.tokens) - num_rejected, sequence.groups)

    def _propose(self, prepared: PreparedBatch) -> None:
        """Let the sequences that have new tokens propose the next ones."""
        if self.draft is not None:
            self.draft.compute()
        for (sequence, _), count in zip(prepared.shares, prepared.num_outputs, strict=True):
            if sequence.is_running and count:
                self._isolation.attempt(sequence, None, sequence.propose)

    @property
    def _is_drafting(self) -> bool:
        """True if proposals are to be computed, which may take the place of a prepared batch in the cache."""
        return self.draft is not None and self.draft.is_requested

    def _is_foreseeable(self) -> bool:
        """True if the batch after the one that is computed can be prepared already."""
        running = self._sequences.running
        if self._sequences.restoring:
            return False
        return not any(self._isolation.attempt(sequence, True, _is_open, sequence) for sequence in running)

    def _is_outdated(self) -> bool:
        """True if a prepared batch does not fit any more: a sequence ended, came, or has proposed tokens."""
        running = self._sequences.running
        if not all(sequence.is_running and not sequence.is_speculating for sequence in running):
            return True
        return self._sequences.can_admit

    def _recover(self, error: BaseException, ended: Items[Sequence]) -> None:
        """Begin again with empty slots after a failure of a whole step, which ends the sequences `ended`.

        The others compute all their tokens once more, which gives the same answers. The sequence that was
        being handled cannot, since nobody knows how far that went, and neither can those with moved keys.
        """
        with suppress(Exception):  # it is what failed, or the computation ends well and nobody needs it
            self._program.wait()
        self._computing.clear()
        self._timer.drop()
        self._prefix_cache.drop_noted()
        handled = self._isolation.interrupted()
        if handled is not None:
            self._isolation.fail(handled, error)
        moved = [sequence for sequence in self._sequences.running if sequence.slot.shifted_at is not None]
        for sequence in dict.fromkeys((*self._unwritten, *self._sequences.running)):
            if sequence is handled:
                continue
            self._isolation.attempt(sequence, None, sequence.write)
            if sequence.is_running and (sequence in ended or sequence in moved):
                self._isolation.fail(sequence, error)
        self._unwritten = []
        self._sequences.restart()
        if self.draft is not None:
            self.draft.forget()


def _nothing(count: float, seconds: float) -> None:
    """Measure nothing: nobody wants to know."""


def _is_open(sequence: Sequence) -> bool:
    return sequence.is_open


def _stops_others(sequence: Sequence) -> bool:
    """True if nothing may be computed when it goes on: its context is full, or it goes on with others."""
    return sequence.full_context is not None or (sequence.is_open and not sequence.is_speculating)
